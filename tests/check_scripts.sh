#!/usr/bin/env bash
# Every script passes shellcheck:  check_scripts.sh SHELLCHECK
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
find .ci/run experiments tests \( -name '*.sh' -o -path .ci/run \) -print0 | xargs -0 "$1" --severity=warning
