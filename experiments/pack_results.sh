#!/usr/bin/env bash
# Packs a folder of results for a release. See --help.
set -euo pipefail

usage() {
  cat <<TEXT
Usage: experiments/pack_results.sh FOLDER OUT.tar.xz [FILE...]

Packs the files of FOLDER and of its folders (logs, texts, pages), and FILEs beside
them, such as the study and the report's page. The archive has MANIFEST.sha256, the
SHA-256 of each file, which is also written to OUT.tar.xz.sha256 with that of the
archive. To check what was unpacked: sha256sum -c MANIFEST.sha256.

Hidden files, logs of unfinished runs (*.part.h5) and damaged ones (*.damaged*) are
left out, and so is MANIFEST.sha256 of an archive that was unpacked in FOLDER. The
same files make the same archive. Nothing is overwritten. Needs tar, xz and sha256sum.
TEXT
}

die() {
  echo "pack_results.sh: $*" >&2
  exit 2
}

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ $# -ge 2 ] || die "needs FOLDER and OUT.tar.xz; --help says more"
folder=$1 out=$2
shift 2
[ -d "$folder" ] || die "$folder: there is no such folder"
case $out in ?*.tar.xz) ;; *) die "$out: must end in .tar.xz" ;; esac
[ -d "$(dirname "$out")" ] || die "$out: there is no folder $(dirname "$out")"
link=$(find "$folder/" -name '.?*' -prune -o -type l -print -quit)
[ -z "$link" ] || die "$link: is a symbolic link; an archive has files, so put the file itself there"
for path in "$out" "$out.sha256"; do [ ! -e "$path" ] && [ ! -L "$path" ] || die "$path: exists already; it is not overwritten"; done

scratch=$(mktemp -d "$(dirname "$out")/.pack-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
name=$(basename "$out" .tar.xz)
top=$scratch/$name
mkdir "$top"
(cd "$folder" && find . -name '.?*' -prune -o -type f ! -name '*.part.h5' ! -name '*.damaged*' ! -path ./MANIFEST.sha256 -print0) |
  tar -C "$folder" --null --files-from=- -cf - | tar -C "$top" -xf -
for file in "$@"; do
  [ ! -d "$file" ] || die "$file: is a folder; beside FOLDER there are files, so put it into FOLDER"
  [ -f "$file" ] || die "$file: there is no such file"
  [ ! -e "$top/$(basename "$file")" ] || die "$file: $folder has a file of this name"
  cp -- "$file" "$top/"
done
(cd "$top" && find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0r sha256sum --) >"$scratch/MANIFEST.sha256"
[ -s "$scratch/MANIFEST.sha256" ] || die "$folder: has no files"
cp "$scratch/MANIFEST.sha256" "$top/"
find "$top" -exec touch -d @0 {} +
chmod -R u=rwX,go=rX "$top"
tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -9 >"$scratch/archive"
(cd "$scratch" && printf '%s  %s.tar.xz\n' "$(sha256sum <archive | cut -d ' ' -f 1)" "$name" &&
  while read -r sum path; do printf '%s  %s\n' "$sum" "$name/$path"; done <MANIFEST.sha256) >"$scratch/sums"
mv -T "$scratch/archive" "$out"
mv -T "$scratch/sums" "$out.sha256"
echo "$out: $(wc -l <"$scratch/MANIFEST.sha256") files, $(wc -c <"$out") bytes"
