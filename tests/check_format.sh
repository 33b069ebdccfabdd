#!/usr/bin/env bash
# Every source is as .clang-format says:  check_format.sh CLANG_FORMAT
# To mend a file: clang-format-14 -i FILE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
find app comm io kernels net tests experiments -name '*.[ch]pp' -print0 -o -name '*.h' -print0 -o -name '*.cu' -print0 |
  xargs -0 "$1" --dry-run --Werror
