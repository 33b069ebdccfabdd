#!/usr/bin/env bash
# Makes the bundle beside a link that somebody has put there:  make_test.sh CMAKE BUILD ARCHIVE
set -euo pipefail
command -v patchelf >/dev/null || { echo 'skipped: no patchelf' && exit 77; }
victim=$(mktemp)
trap 'rm -f "$victim" "$3.part"' EXIT
echo precious >"$victim"
ln -sf "$victim" "$3.part"
rm -f "$3"
"$1" --build "$2" --target bundle
[ -f "$3" ] || { echo "FAILED: there is no $3" && exit 1; }
[ "$(<"$victim")" = precious ] || { echo "FAILED: the archive was written through the link $3.part" && exit 1; }
left=$(find "$(dirname "$3")" -maxdepth 1 -name '.unfinished-*')
[ -z "$left" ] || { echo "FAILED: $left is left" && exit 1; }
