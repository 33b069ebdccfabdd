#!/usr/bin/env bash
# The library as others find it when it is installed: installed_test.sh CMAKE BUILD SOURCE_OF_A_PROGRAM MPIRUN VERSION
# A project of its own uses it by find_package, and the same program is built with pkg-config.
set -euo pipefail
cmake=$1 build=$2 source=$3 mpirun=$4 version=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$cmake" --install "$build" --component library --prefix "$folder/prefix" > "$folder/installed"
mkdir "$folder/project"
sed 's|"comm/capi/dptrain_comm.h"|<dptrain_comm.h>|' "$source" > "$folder/project/program.c"
cat > "$folder/project/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.16)
project(foreign LANGUAGES C)
find_package(dptrain $version EXACT REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE dptrain::comm m)
END
"$cmake" -S "$folder/project" -B "$folder/project/build" -DCMAKE_PREFIX_PATH="$folder/prefix" > "$folder/configured"
"$cmake" --build "$folder/project/build" > "$folder/built"
"$mpirun" -np 2 "$folder/project/build/program"
if command -v pkg-config > "$folder/found"; then
  pc=$(dirname "$(find "$folder/prefix" -name dptrain_comm.pc)")
  [ "$(PKG_CONFIG_PATH=$pc pkg-config --modversion dptrain_comm)" = "$version" ]
  # The words of pkg-config are several arguments.
  # shellcheck disable=SC2046
  cc -std=c99 "$folder/project/program.c" -o "$folder/by_pkg_config" \
    $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs dptrain_comm) -lm
  LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir dptrain_comm) \
    "$mpirun" -np 2 "$folder/by_pkg_config"
  example=$(find "$folder/prefix" -name example.c)
  # shellcheck disable=SC2046
  cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$example" -o "$folder/example" \
    $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs dptrain_comm)
  LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir dptrain_comm) \
    "$mpirun" -np 2 "$folder/example" > "$folder/said_by_example"
  grep -qE 'weights\[0\] is (0.9[5-9]|1.0[0-5])' "$folder/said_by_example" || { cat "$folder/said_by_example"; exit 1; }
fi
# The version is the same everywhere; the wheel takes it from CMakeLists.txt by an expression like this one.
root=$(dirname "$source")/../../..
[ "$(sed -nE 's/^project\(dptrain VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")" = "$version" ]
grep -q 'project.*dptrain VERSION' "$root/comm/capi/python/pyproject.toml"
grep -q "define DPTRAIN_COMM_VERSION \"$version\"" "$folder/prefix/include/dptrain_comm.h"
# The library exports the functions of its header and of the list of symbols.
library=$(find "$folder/prefix" -name 'libdptrain_comm.so.0')
nm -D --defined-only "$library" | awk '$2 == "T" {print $3}' | sort > "$folder/versioned"
awk '/^DPTRAIN_COMM/ {node = $1} /^    dptrain_comm_/ {sub(/;/, ""); print $1 "@@" node}' "$root/comm/capi/exports.map" | sort |
  diff "$folder/versioned" -
sed 's/@.*//' "$folder/versioned" > "$folder/shown"
grep -o 'dptrain_comm_[a-z_]*(' "$folder/prefix/include/dptrain_comm.h" | tr -d '(' | sort -u > "$folder/said"
diff "$folder/shown" "$folder/said"
