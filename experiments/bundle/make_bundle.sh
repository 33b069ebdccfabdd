#!/usr/bin/env bash
# Packs the programs and all that they need into one archive, which only has to be unpacked. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/bundle/make_bundle.sh --out ARCHIVE.tar.xz --mpirun FILE
         [--older-glibc LIBRARY] [--gpu-test PROGRAM]... [--gpu-test-list FILE]
         [--gpu-case-list FILE] PROGRAM...

Packs the programs, the launcher mpirun and every shared library beyond glibc's own
into ARCHIVE, under a folder of the archive's name. What unpacks it needs neither
root nor Open MPI, HDF5 or oneDNN. Called by: cmake --build build --target bundle

  --out FILE           the archive, ending in .tar.xz or .tar.gz
  --mpirun FILE        Open MPI's mpirun; its plugins are taken from the same installation
  --older-glibc FILE   a library with functions of newer glibc (older_glibc.c), so that the bundle
                       runs on older systems, too
  PROGRAM              the first one is dptrain, whose --version is asked about GPUs
  --gpu-test PROGRAM   a test program that needs a GPU; goes to tests/
  --gpu-test-list FILE lines "PROGRAM RANKS": how tests/gpu.sh runs them
  --gpu-case-list FILE lines "SCRIPT CASE": tests in Python of tests/app, for tests/gpu.sh

Needs patchelf, objdump, tar and xz or gzip. DP_BUNDLE_LEVEL is xz's level (6): at 1 the
archive is made in a fifth of the time and is larger by two thirds.
TEXT
}

die() {
  echo "make_bundle.sh: $*" >&2
  exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_root=$(cd "$here/../.." && pwd)
archive='' mpirun='' gpu_test_list='' gpu_case_list='' older_glibc=''
programs=() gpu_tests=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --out | --mpirun | --older-glibc | --gpu-test | --gpu-test-list | --gpu-case-list)
      [ $# -ge 2 ] || die "$1: needs a value"
      case "$1" in
        --out) archive=$2 ;;
        --mpirun) mpirun=$2 ;;
        --older-glibc) older_glibc=$2 ;;
        --gpu-test) gpu_tests+=("$2") ;;
        --gpu-test-list) gpu_test_list=$2 ;;
        --gpu-case-list) gpu_case_list=$2 ;;
      esac
      shift
      ;;
    -*) die "$1: unknown option; known: --out, --mpirun, --older-glibc, --gpu-test, --gpu-test-list, --gpu-case-list, --help" ;;
    *) programs+=("$1") ;;
  esac
  shift
done
case "$archive" in
  *.tar.xz) pack=(xz "-${DP_BUNDLE_LEVEL:-6}" -T0) ;;
  *.tar.gz) pack=(gzip -9) ;;
  *) die "--out '$archive': must end in .tar.xz or .tar.gz" ;;
esac
[ ${#programs[@]} -gt 0 ] || die "no programs given (see --help)"
for tool in patchelf objdump readelf nm tar strip "${pack[0]}"; do
  command -v "$tool" >/dev/null 2>&1 || die "needs $tool (Debian and Ubuntu: apt-get install patchelf binutils tar xz-utils)"
done
for file in "${programs[@]}" "${gpu_tests[@]}" "$mpirun"; do
  [ -x "$file" ] || die "'$file': no such program"
done

name=$(basename "$archive")
name=${name%.tar.*}
scratch=$(mktemp -d)
unfinished=''
trap 'rm -rf "$scratch" "$unfinished"' EXIT
root=$scratch/$name
mkdir -p "$root"/{bin,libexec,lib/openmpi,lib/pmix,lib/hwloc,share/openmpi,share/pmix,share/licenses,etc/openmpi,tests,experiments}

# --- The programs and Open MPI's launcher -----------------------------------------------------------
orterun=$(readlink -f "$mpirun")
mpi_bin=$(dirname "$orterun")
ompi_info=$mpi_bin/ompi_info
[ -x "$ompi_info" ] || ompi_info=$(command -v ompi_info) ||
  die "$mpirun is not Open MPI's (no ompi_info beside it); only Open MPI can be packed"
mpi_path() { "$ompi_info" --parsable --path "$1" | sed -n 's/^path:[a-z]*://p' | head -n 1; }
orted=$mpi_bin/orted
[ -x "$orted" ] || die "no orted beside $orterun: only Open MPI 4 can be packed"

cp -L "${programs[@]}" "$root/libexec/"
cp -L "$orterun" "$root/libexec/orterun"
cp -L "$orted" "$root/libexec/orted"
[ ${#gpu_tests[@]} -eq 0 ] || cp -L "${gpu_tests[@]}" "$root/libexec/"

# Plugins for TCP, shared memory, ssh and Slurm. Others need libraries of networks that few machines have (UCX,
# libfabric, verbs, PSM), or are for MPI's files and windows, which nothing here uses.
unwanted='_(ucx|ofi|openib|psm|psm2|cm|monitoring|flux|jsm|simulator|gridengine|pspawn|pessimist|hugepage|netlink|bzip)\.so$'
unwanted+='|mca_(io|fs|fbtl|fcoll|sharedfp|osc|mtl|spml|sshmem|scoll|memheap|atomic)_'
while IFS= read -r plugin; do
  cp -L "$plugin" "$root/lib/openmpi/"
done < <(find "$(mpi_path pkglibdir)" -name 'mca_*.so' | grep -vE "$unwanted")
cp -L "$(mpi_path pkgdatadir)"/help-*.txt "$root/share/openmpi/"
cat >"$root/etc/openmpi/openmpi-mca-params.conf" <<'TEXT'
# Settings of the bundle's Open MPI; every line as: name = value
btl_base_warn_component_unused = 0
TEXT

# --- Shared libraries: all but glibc's own, with those that they need ----------------------------------
is_of_glibc() {
  case "$1" in
    ld-linux* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | libresolv.so.* | \
      libanl.so.* | libmvec.so.* | libnss_*.so.* | libnsl.so.* | libBrokenLocale.so.* | libthread_db.so.*) return 0 ;;
  esac
  return 1
}

origins=$scratch/origins # the files that were copied, for the licenses
printf '%s\n' "$orterun" "$orted" "$(mpi_path pkglibdir)/mca_btl_tcp.so" >"$origins"

take_needed() { # files: copies what ldd finds for them
  local soname arrow path rest
  while read -r soname arrow path rest; do
    [ "$arrow" = '=>' ] || continue
    [ "$path" != not ] || die "$soname is needed and not found ($*)"
    is_of_glibc "$soname" && continue
    [ -e "$root/lib/$soname" ] && continue
    cp -L "$path" "$root/lib/$soname"
    readlink -f "$path" >>"$origins"
  done < <(ldd "$@" | grep '=>' | sort -u)
}
take_needed "$root"/libexec/* "$root"/lib/openmpi/*.so
# PMIx opens its own plugins from a folder beside the library.
pmix=$(ldd "$root"/lib/openmpi/mca_pmix_ext*.so 2>/dev/null | sed -n 's/^\s*libpmix\.so[^ ]* => \([^ ]*\) .*/\1/p' | head -n 1)
if [ -n "$pmix" ]; then
  for folder in "$(dirname "$(readlink -f "$pmix")")"/{pmix,pmix2/lib/pmix}; do
    [ ! -d "$folder" ] || cp -L "$folder"/*mca_*.so "$root/lib/pmix/"
  done
  take_needed "$root"/lib/pmix/*.so
fi

chmod -R u+w "$root"
# DT_RPATH, not DT_RUNPATH: it comes before LD_LIBRARY_PATH, so that a cluster's own libmpi is not used.
patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$root"/libexec/*
for file in "$root"/lib/*.so*; do patchelf --force-rpath --set-rpath "\$ORIGIN" "$file"; done
for file in "$root"/lib/{openmpi,pmix}/*.so; do
  [ ! -e "$file" ] || patchelf --force-rpath --set-rpath "\$ORIGIN/.." "$file"
done
strip --strip-debug "$root"/libexec/* 2>/dev/null || true

# --- Functions of newer glibc --------------------------------------------------------------------------
# A reference such as arc4random@GLIBC_2.36 keeps a library from starting with glibc 2.35. If `older_glibc` has the
# function, the reference loses its version, and the version is needed no more: its entry is marked as weak.
needs() { objdump -T "$1" 2>/dev/null | sed -n 's/.*\*UND\*.*(\(GLIBC_[0-9.]*\)) *\(.*\)/\1 \2/p'; } # version, symbol
weaken() { # file, version: sets VER_FLG_WEAK in vna_flags, two bytes at 4 in the version's entry
  local section entry
  section=$(readelf -SW "$1" | sed -n 's/.*\.gnu\.version_r *VERNEED *[0-9a-f]* \([0-9a-f]*\) .*/\1/p')
  entry=$(readelf -V "$1" | sed -n "s/^ *\(0x[0-9a-f]*\): *Name: $2 .*/\1/p")
  [ -n "$section" ] && [ -n "$entry" ] || die "$1: no entry for $2"
  printf '\2\0' | dd of="$1" bs=1 seek=$((16#$section + entry + 4)) conv=notrunc status=none
}
if [ -n "$older_glibc" ]; then
  cp -L "$older_glibc" "$root/lib/"
  offered=$(nm -D --defined-only "$older_glibc" | awk '{ print $3 }')
  for file in "$root"/libexec/* "$root"/lib/*.so* "$root"/lib/{openmpi,pmix}/*.so; do
    [ -f "$file" ] && used=$(needs "$file" | grep -wF "$offered") || continue
    while read -r version symbol; do patchelf --clear-symbol-version "$symbol" "$file"; done <<<"$used"
    patchelf --add-needed "$(basename "$older_glibc")" "$file"
    for version in $(cut -d ' ' -f 1 <<<"$used" | sort -u); do
      [ -n "$(needs "$file" | grep "^$version ")" ] || weaken "$file" "$version"
    done
  done
fi

# --- Scripts, texts, licenses -----------------------------------------------------------------------
cp "$here/start.sh" "$root/libexec/start.sh"
chmod 755 "$root/libexec/start.sh"
for file in "${programs[@]}" mpirun orted; do
  ln -s ../libexec/start.sh "$root/bin/$(basename "$file")"
done
for file in "${gpu_tests[@]}"; do ln -s ../libexec/start.sh "$root/tests/$(basename "$file")"; done
cp "$source_root/tests/gpu.sh" "$root/tests/"
if [ -n "$gpu_test_list" ]; then
  cp "$gpu_test_list" "$root/tests/gpu_tests.txt"
  cp -r "$source_root/tests/net/fixtures" "$root/tests/"
fi
if [ -n "$gpu_case_list" ]; then
  cp "$gpu_case_list" "$root/tests/gpu_cases.txt"
  for script in $(cut -d ' ' -f 1 "$gpu_case_list" | sort -u); do cp "$source_root/tests/app/$script" "$root/tests/"; done
fi
cp "$source_root"/experiments/{batch_scan,get_cifar}.sh "$root/experiments/"
cp "$source_root/LICENSE" "$root/LICENSE"

# objdump prints nothing for scripts.
glibc=$({ find "$root/libexec" "$root/lib" -type f -exec objdump -T {} + 2>/dev/null || true; } |
  grep -o 'GLIBC_2\.[0-9]*' | sort -u -t . -k 2n | tail -n 1 | sed 's/GLIBC_//')
# "GPUs: with an NVIDIA driver 580 or later ..."
gpus=$("${programs[0]}" --version 2>/dev/null | grep '^GPUs: ') || die "${programs[0]} --version does not say which GPUs it can use"
sed "s/@NAME@/$name/g; s/@GLIBC@/$glibc/g; s/@GPUS@/$gpus/g" "$here/README.txt" >"$root/README.txt"

{
  echo "$name holds dptrain (LICENSE) and these libraries, unchanged but for the place where they look for each other"
  echo "and for debugging symbols. The text of each license is in share/licenses/PACKAGE."
  echo
} >"$root/LICENSES.txt"
if command -v dpkg-query >/dev/null 2>&1; then
  sort -u "$origins" | while IFS= read -r file; do
    # dpkg may know files below /usr/lib as files below /lib.
    { dpkg-query -S "$file" || dpkg-query -S "${file#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1
  done | sort -u | while IFS= read -r package; do
    version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null | head -n 1 || true)
    echo "  $package $version" >>"$root/LICENSES.txt"
    if [ -e "/usr/share/doc/$package/copyright" ]; then
      cp -L "/usr/share/doc/$package/copyright" "$root/share/licenses/$package"
    fi
  done
else
  sort -u "$origins" | sed 's/^/  /' >>"$root/LICENSES.txt"
fi
if grep -aq cudaErrorMemoryAllocation "$root"/libexec/*; then
  echo "  NVIDIA's libcudart, linked statically (CUDA Toolkit EULA, attachment A)" >>"$root/LICENSES.txt"
fi

# --- The archive: the same bytes from the same files ------------------------------------------------------
mkdir -p "$(dirname "$archive")"
# Beside the archive, under a name that nobody can foresee: a link there would lead elsewhere.
unfinished=$(mktemp "$(dirname "$archive")/.unfinished-XXXXXXXX")
chmod "$(printf '%o' $((0666 & ~$(umask))))" "$unfinished"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$scratch" -cf - "$name" | "${pack[@]}" >"$unfinished"
mv -T "$unfinished" "$archive"
bytes=$(stat -c %s "$archive")
printf '%s: %.1f MiB, unpacked %s, needs glibc %s\n' "$archive" "$(awk "BEGIN { print $bytes / 1048576 }")" \
  "$(du -sh "$root" | cut -f 1)" "$glibc"
limit=$((64 * 1048576))
[ "$bytes" -lt "$limit" ] || die "$archive has $bytes bytes; it must stay below $limit"
