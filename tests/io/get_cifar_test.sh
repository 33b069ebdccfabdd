#!/usr/bin/env bash
# Tests experiments/get_cifar.sh without a network: stand-ins replace `curl` and `md5sum`.
#   get_cifar_test.sh SCRIPT
set -euo pipefail

script=$1
# The blank in the name is on purpose.
work=$(mktemp -d "${TMPDIR:-/tmp}/get cifar.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/site"
failures=0

expect() { # title, expected exit code, expected glob of the output, command...
  local title=$1 code=$2 glob=$3 output result=0
  shift 3
  output=$("$@" 2>&1) || result=$?
  # shellcheck disable=SC2053 # a glob is meant
  if [ "$result" != "$code" ] || [[ "$output" != $glob ]]; then
    echo "FAILED: $title: exit code $result (expected $code), output (expected $glob):"
    echo "$output"
    failures=$((failures + 1))
  fi
}

check() { # title, test...
  local title=$1
  shift
  if ! "$@"; then
    echo "FAILED: $title"
    failures=$((failures + 1))
  fi
}

# curl: records its calls in $work/calls. Appends the missing rest of the file of that name in
# $work/site to the --output file, or fails as without a network.
cat >"$work/bin/curl" <<'TEXT'
#!/usr/bin/env bash
set -euo pipefail
echo call >>"$WORK/calls"
while [ $# -gt 1 ]; do [ "$1" = --output ] && output=$2; shift; done
source=$WORK/site/$(basename "$1")
[ -f "$source" ] || { echo "curl: (6) Could not resolve host" >&2; exit 6; }
have=0; [ -f "$output" ] && have=$(stat -c %s "$output")
tail -c +$((have + 1)) "$source" >>"$output"
TEXT
# md5sum: the official sum for a file with the same bytes as the stand-in archive.
cat >"$work/bin/md5sum" <<'TEXT'
#!/usr/bin/env bash
sum=00000000000000000000000000000000
cmp -s "${1:--}" "$WORK/true.tar.gz" && sum=c32a1d4ab5d03f1284b67883e8d87530
# As the real one, which marks a name with a newline.
[[ "${1:--}" != *$'\n'* ]] || sum="\\$sum"
echo "$sum  ${1:--}"
TEXT
chmod +x "$work/bin/curl" "$work/bin/md5sum"
export WORK=$work PATH="$work/bin:$PATH"

expect "help" 0 "Usage: experiments/get_cifar.sh*" "$script" --help
expect "no arguments" 1 "get_cifar.sh: which data set?*cifar10, cifar100 or all*" "$script"
expect "unknown set" 1 "get_cifar.sh: mnist: unknown data set; known: cifar10, cifar100, all" "$script" mnist
expect "unknown option" 1 "get_cifar.sh: --force: unknown option*" "$script" --force cifar10
expect "too many words" 1 "*'c': one data set and one folder*" "$script" cifar10 "$work/b" c
touch "$work/file"
expect "folder is a file" 1 "*the folder $work/file/x cannot be made*" "$script" cifar10 "$work/file/x"

expect "no network" 1 "*could not be downloaded*Without a network*put it at $work/data/cifar-10-binary.tar.gz*" \
  "$script" cifar10 "$work/data"
expect "no network, CIFAR-100" 1 "*cifar-100-binary.tar.gz could not be downloaded*" "$script" cifar100 "$work/data"

# The stand-in archive: files of the right names and sizes, sparse.
mkdir "$work/cifar-10-batches-bin"
for name in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
  truncate -s 30730000 "$work/cifar-10-batches-bin/$name.bin"
done
tar -C "$work" -czf "$work/true.tar.gz" cifar-10-batches-bin

echo altered >"$work/site/cifar-10-binary.tar.gz"
expect "wrong sum" 1 "*MD5 sum of what came is 0000*expected c32a1d4a*removed*" "$script" cifar10 "$work/data"
check "the altered file is gone" [ -z "$(ls "$work/data")" ]

# The first part of a true archive is there from a download that was cut off.
cp "$work/true.tar.gz" "$work/site/cifar-10-binary.tar.gz"
head -c 1000 "$work/true.tar.gz" >"$work/data/cifar-10-binary.tar.gz.part"
: >"$work/calls"
expect "resumed" 0 "*cifar10: in $work/data/cifar-10-batches-bin; train with --dataset cifar10*" \
  "$script" cifar10 "$work/data"
check "one download" [ "$(wc -l <"$work/calls")" = 1 ]
check "unpacked" [ -f "$work/data/cifar-10-batches-bin/test_batch.bin" ]
check "nothing is left over" [ -z "$(find "$work/data" -name '.get_cifar*' -o -name '*.part')" ]
expect "second time" 0 "cifar10: already in *" "$script" cifar10 "$work/data"
check "no second download" [ "$(wc -l <"$work/calls")" = 1 ]

# A damaged set is unpacked again from the archive that is there.
truncate -s 100 "$work/data/cifar-10-batches-bin/data_batch_3.bin"
expect "repaired" 0 "*cifar10: in *" "$script" cifar10 "$work/data"
check "still one download" [ "$(wc -l <"$work/calls")" = 1 ]
check "whole again" [ "$(stat -c %s "$work/data/cifar-10-batches-bin/data_batch_3.bin")" = 30730000 ]

# An archive that the user put there is refused, not removed, if it is another.
rm -r "$work/data/cifar-10-batches-bin"
echo mine >"$work/data/cifar-10-binary.tar.gz"
expect "another archive" 1 "*cifar-10-binary.tar.gz: its MD5 sum is 0000*remove it*" "$script" cifar10 "$work/data"
check "it is left alone" grep -q mine "$work/data/cifar-10-binary.tar.gz"

# Links at the names that are written to, by somebody who may write to the folder.
archive=cifar-10-binary.tar.gz
for kind in -s -f; do # a symbolic and a hard one
  mkdir "$work/shared"
  echo precious >"$work/victim"
  ln "$kind" "$work/victim" "$work/shared/$archive.part"
  expect "link at the part ($kind)" 1 "*$archive.part is a link, or not a file of yours; remove it" \
    "$script" cifar10 "$work/shared"
  check "nothing is written through it" [ "$(cat "$work/victim")" = precious ]
  check "it stays" [ "$work/shared/$archive.part" -ef "$work/victim" ]
  check "nothing else stays" [ "$(ls -A "$work/shared")" = "$archive.part" ]
  rm -r "$work/shared"
done
mkdir "$work/shared" "$work/elsewhere"
ln -s "$work/elsewhere" "$work/shared/cifar-10-batches-bin"
mkdir "$work/shared/$archive.part"
expect "folder at the part" 1 "*$archive.part is a link, or not a file of yours; remove it" \
  "$script" cifar10 "$work/shared"
rmdir "$work/shared/$archive.part"
expect "link at the data" 0 "*cifar10: in *" "$script" cifar10 "$work/shared"
check "nothing is unpacked through it" [ -z "$(ls "$work/elsewhere")" ]

# A download that ends early stays for the next call.
mkdir "$work/early"
mv "$work/bin/curl" "$work/bin/whole"
cat >"$work/bin/curl" <<'TEXT'
#!/usr/bin/env bash
while [ $# -gt 1 ]; do [ "$1" = --output ] && output=$2; shift; done
head -c 1000 "$WORK/true.tar.gz" >"$output"
exit 18
TEXT
chmod +x "$work/bin/curl"
expect "ended early" 1 "*could not be downloaded; run this again to go on where it ended*" \
  "$script" cifar10 "$work/early"
check "1,000 bytes stay" [ "$(stat -c %s "$work/early/$archive.part")" = 1000 ]
check "and nothing else" [ "$(ls -A "$work/early")" = "$archive.part" ]
mv "$work/bin/whole" "$work/bin/curl"
expect "gone on with" 0 "*cifar10: in *" "$script" cifar10 "$work/early"

# A server that sends whole files alone.
mkdir "$work/whole only"
head -c 1000 "$work/true.tar.gz" >"$work/whole only/$archive.part"
mv "$work/bin/curl" "$work/bin/whole"
cat >"$work/bin/curl" <<'TEXT'
#!/usr/bin/env bash
words=("$@")
while [ $# -gt 1 ]; do [ "$1" = --output ] && output=$2; shift; done
[ ! -s "$output" ] || { echo "curl: (33) HTTP server does not seem to support byte ranges. Cannot resume." >&2; exit 33; }
exec "$WORK/bin/whole" "${words[@]}"
TEXT
chmod +x "$work/bin/curl"
expect "begun anew" 0 "*cifar10: in *" "$script" cifar10 "$work/whole only"
mv "$work/bin/whole" "$work/bin/curl"

# Names that programs read in their own ways: md5sum a newline, tar a colon.
for name in $'with a\nnewline' 'host:folder' 'back\slash'; do
  mkdir "$work/$name"
  expect "folder '$name'" 0 "*cifar10: in *" "$script" cifar10 "$work/$name"
  check "its archive stays" [ -f "$work/$name/$archive" ]
  rm -r "$work/$name/cifar-10-batches-bin"
  : >"$work/calls"
  expect "unpacked again in '$name'" 0 "cifar10: in *" "$script" cifar10 "$work/$name"
  check "without a download" [ ! -s "$work/calls" ]
done

[ "$failures" = 0 ] && echo "all cases passed"
exit "$((failures > 0))"
