#!/usr/bin/env bash
# Downloads and verifies the official binary archives of CIFAR-10 and CIFAR-100. See --help.
set -euo pipefail

program=${0##*/} # dptrain-get-cifar where it is installed
[ "$program" != get_cifar.sh ] || program=experiments/$program
usage() {
  cat <<TEXT
Usage: $program cifar10|cifar100|all [FOLDER]

Downloads the official archive (about 170 MB each) from www.cs.toronto.edu into
FOLDER (default: data), checks its MD5 sum and unpacks it there. Then

    dptrain --dataset cifar10 --data-dir FOLDER

trains on it. A download that was cut off goes on where it ended; a data set that
exists already is left alone. Needs curl or wget, tar, gzip and md5sum.

Without a network: fetch the archive on another machine, put it into FOLDER, and
run this again; it is then only verified and unpacked. A mirror can be named by
the environment variable DPTRAIN_CIFAR_URL (the address of its folder).
TEXT
}

die() {
  echo "${program##*/}: $*" >&2
  exit 1
}

# A folder of this script alone, in which nobody else can put a link: what is downloaded or unpacked
# lies there until it is complete. A part of an archive goes back to where the next call finds it.
scratch=''
part=''
clean_up() {
  [ -n "$scratch" ] || return 0
  if [ -n "$part" ] && [ -s "$scratch/part" ]; then mv -nT "$scratch/part" "$part" || true; fi
  rm -rf "$scratch"
}
trap clean_up EXIT
make_scratch() { scratch=$(mktemp -d "$folder/.get_cifar.XXXXXX") || die "nothing can be written to the folder $folder"; }

base_url=${DPTRAIN_CIFAR_URL:-https://www.cs.toronto.edu/~kriz}

# The files of an unpacked archive and their sizes, "name bytes" by line.
expected_files() {
  if [ "$1" = cifar10 ]; then
    local batch
    for batch in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
      echo "$batch.bin 30730000"
    done
  else
    echo "train.bin 153700000"
    echo "test.bin 30740000"
  fi
}

is_complete() { # data set, folder of its files
  local name bytes
  while read -r name bytes; do
    [ -f "$2/$name" ] && [ "$(stat -c %s "$2/$name")" = "$bytes" ] || return 1
  done < <(expected_files "$1")
}

md5_of() { md5sum <"$1" | cut -d ' ' -f 1; } # by its input, since md5sum marks names with a newline

download() { # address, file
  if command -v curl >/dev/null 2>&1; then
    local code=0 words=(--fail --location --show-error --retry 3 --connect-timeout 20 --continue-at - --output "$2")
    curl "${words[@]}" "$1" || code=$?
    if [ $code = 33 ] || [ $code = 36 ]; then # this server cannot send the rest alone
      rm -f "$2"
      code=0
      curl "${words[@]}" "$1" || code=$?
    fi
    return $code
  elif command -v wget >/dev/null 2>&1; then
    wget --tries=3 --connect-timeout=20 --continue --output-document="$2" "$1"
  else
    die "neither curl nor wget is here; install one (apt-get install curl)"
  fi
}

# Takes over the part of an earlier call: a file of this user's that has no other name.
take_part() {
  [ -e "$part" ] || [ -L "$part" ] || return 0
  mv -T "$part" "$scratch/part" || die "$part cannot be used; remove it"
  if [ -L "$scratch/part" ] || [ ! -f "$scratch/part" ] || [ ! -O "$scratch/part" ] ||
    [ "$(stat -c %h "$scratch/part")" != 1 ]; then
    mv -nT "$scratch/part" "$part"
    local name=$part
    part=
    die "$name is a link, or not a file of yours; remove it"
  fi
}

fetch_archive() { # data set, archive, MD5 sum
  local url
  url="$base_url/$(basename "$2")"
  part="$2.part"
  take_part
  # A part may be complete, if this script was ended before it renamed the part.
  if [ ! -f "$scratch/part" ] || [ "$(md5_of "$scratch/part")" != "$3" ]; then
    echo "downloading $url"
    download "$url" "$scratch/part" ||
      die "$url could not be downloaded; run this again to go on where it ended, or remove $part before." \
        "Without a network: fetch it on another machine, put it at $2 and run this again"
  fi
  local found
  found=$(md5_of "$scratch/part")
  if [ "$found" != "$3" ]; then
    part=
    die "$url: the MD5 sum of what came is $found, expected $3; it was removed (a broken" \
      "download, or something between here and the server that alters it): run this again"
  fi
  mv -T "$scratch/part" "$2"
  part=
}

get() { # data set
  local archive unpacked md5
  if [ "$1" = cifar10 ]; then
    archive=cifar-10-binary.tar.gz unpacked=cifar-10-batches-bin
    md5=c32a1d4ab5d03f1284b67883e8d87530
  else
    archive=cifar-100-binary.tar.gz unpacked=cifar-100-binary
    md5=03b5dce01913d631647c71ecec9e9cb8
  fi
  if is_complete "$1" "$folder/$unpacked"; then
    echo "$1: already in $folder/$unpacked"
    return
  fi
  make_scratch
  if [ -f "$folder/$archive" ]; then
    local found
    found=$(md5_of "$folder/$archive")
    [ "$found" = "$md5" ] || die "$folder/$archive: its MD5 sum is $found, expected $md5;" \
      "remove it to have it downloaded again"
  else
    fetch_archive "$1" "$folder/$archive" "$md5"
  fi
  # Unpacks beside the place and then moves, so that nobody sees a half-unpacked set.
  tar -xz -C "$scratch" <"$folder/$archive" || die "$folder/$archive could not be unpacked"
  is_complete "$1" "$scratch/$unpacked" ||
    die "$folder/$archive does not hold the expected files of $1"
  rm -rf "${folder:?}/$unpacked"
  mv -T "$scratch/$unpacked" "$folder/$unpacked"
  rm -rf "$scratch"
  scratch=
  echo "$1: in $folder/$unpacked; train with --dataset $1 --data-dir $folder"
}

sets=() folder=
for argument in "$@"; do
  case "$argument" in
    --help | -h) usage; exit 0 ;;
    -*) die "$argument: unknown option; known: --help" ;;
    *)
      if [ ${#sets[@]} -eq 0 ]; then
        case "$argument" in
          cifar10 | cifar100) sets=("$argument") ;;
          all) sets=(cifar10 cifar100) ;;
          *) die "$argument: unknown data set; known: cifar10, cifar100, all" ;;
        esac
      elif [ -z "$folder" ] && [ -n "$argument" ]; then
        folder=$argument
      else
        die "'$argument': one data set and one folder are expected (see --help)"
      fi
      ;;
  esac
done
[ ${#sets[@]} -gt 0 ] || die "which data set? cifar10, cifar100 or all (see --help)"
folder=${folder:-data}
mkdir -p "$folder" || die "the folder $folder cannot be made"

for set in "${sets[@]}"; do get "$set"; done
