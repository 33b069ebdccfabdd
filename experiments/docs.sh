#!/usr/bin/env bash
# Builds the documentation site. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/docs.sh [--work FOLDER] OUT

Builds a web site of all Markdown pages of the project in the folder OUT, which is new
or an earlier site. Navigation, search, light and dark; pages load nothing from other
hosts. Open OUT/index.html in a browser, or copy OUT to a web server.

  --work FOLDER  keeps the generator there (default: build/docs)

Needs python3-venv, and the package index at the first call: it installs the generator,
MkDocs with Material for MkDocs, in the versions of experiments/docs/requirements.txt
(170 MB). A link that leads nowhere ends the build.
TEXT
}

die() {
  echo "docs.sh: $*" >&2
  exit 2
}

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$source/build/docs out=''
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --work)
      [ $# -ge 2 ] || die "--work: needs a value"
      work=$2
      shift
      ;;
    -*) die "$1: unknown option; known: --work, --help" ;;
    *) [ -z "$out" ] || die "$1: OUT is $out already"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || die "no folder OUT given (see --help)"
mkdir -p "$work"
work=$(realpath "$work") out=$(realpath -m "$out")
# The generator empties its folder first.
if [ -n "$(ls -A "$out" 2>/dev/null)" ] && [ ! -e "$out/search/search_index.json" ]; then
  die "$out: is neither empty nor an earlier site"
fi

# --- The generator ---------------------------------------------------------------------------------------
# -I: nothing is imported from the current folder.
wanted=$source/experiments/docs/requirements.txt
if ! cmp -s "$wanted" "$work/installed.txt"; then
  rm -rf "$work/tools" "$work/installed.txt"
  # Debian's Python: another one may lack venv.
  /usr/bin/python3 -I -m venv "$work/tools" || die "needs python3-venv (apt-get install python3-venv)"
  "$work/tools/bin/python" -I -m pip install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$work/installed.txt"
fi

# --- The site --------------------------------------------------------------------------------------------
# NO_MKDOCS_2_WARNING: a notice of Material's about a later MkDocs, which is not used.
if ! NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 "$work/tools/bin/python" -I -m mkdocs build --strict \
  --config-file "$source/experiments/docs/mkdocs.yml" --site-dir "$out" >"$work/log.txt" 2>&1; then
  grep -v '^INFO' "$work/log.txt" >&2 || true
  die "the site could not be built"
fi

# Nothing is loaded from elsewhere: scripts, styles, pictures, fonts.
if grep -rEn --include='*.html' '<(script|img|iframe|source)[^>]* src="?(https?:)?//|<link[^>]* rel="?(stylesheet|preconnect|preload|icon)[^>]* href="?(https?:)?//' "$out" ||
  grep -rEn --include='*.css' 'url\(["'\'']?(https?:)?//' "$out"; then
  die "the lines above load something from another host"
fi
echo "$(find "$out" -name '*.html' | wc -l) pages: $out/index.html"
