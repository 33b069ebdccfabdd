# dp_library(NAME [FOR_SHARED] SOURCES ... [LINK ...]) and dp_program(NAME SOURCES ... [LINK ...]):
# targets with the project's standard, warnings and sanitizers. FOR_SHARED: a shared library is made
# of it. Includes are written by path from the root.

add_library(dp_settings INTERFACE)
target_compile_features(dp_settings INTERFACE cxx_std_20)
target_include_directories(dp_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(dp_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                            -Wformat=2 -fopenmp-simd>
  # g++ 12 sees overlaps and overflows in std::string's functions that are not there (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-stringop-overflow
                                                                                            -Wno-array-bounds>
  # The same source must give the same bits everywhere: no fused multiply-add behind our back.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-O3>)
# nvcc: device code without fused multiply-add, too, and the host's half as g++ compiles the rest. The
# warnings that CUDA's own headers raise in g++ stay off. (CMake 3.25 knows no C++20 for nvcc.)
target_compile_options(dp_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --fmad=false --expt-relaxed-constexpr
                             -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
if(DP_NATIVE)
  set(dp_march native)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(dp_march x86-64-v3)
endif()
if(dp_march)
  target_compile_options(dp_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-march=${dp_march}>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=${dp_march}>)
endif()
if(DP_WERROR)
  target_compile_options(dp_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(NOT DP_ASSERT)
  target_compile_definitions(dp_settings INTERFACE DP_NO_ASSERT)
endif()
if(DP_SANITIZE)
  target_compile_options(dp_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DP_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(dp_settings INTERFACE $<$<LINK_LANGUAGE:C,CXX>:-fsanitize=${DP_SANITIZE}>)
endif()

# For wheels: what is linked starts on systems whose libstdc++ and glibc are older than the compiler's.
if(DP_PORTABLE)
  enable_language(C)
  add_library(dp_portable OBJECT ${PROJECT_SOURCE_DIR}/experiments/bundle/older_glibc.c)
  set_target_properties(dp_portable PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_compile_definitions(dp_portable PRIVATE DP_GLIBC_2_28)
  add_link_options(-static-libstdc++ -static-libgcc -Wl,--as-needed -Wl,--exclude-libs,ALL)
endif()
function(dp_make_portable target)
  if(DP_PORTABLE)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:dp_portable>)
  endif()
endfunction()

# Precompiled headers: the standard library, fmt and GoogleTest are parsed once and not in every
# file. Off where a compiler launcher is set, as ccache needs settings for such files, and in all but
# Release builds, so that a missing #include is found there.
set(dp_precompile OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT DP_SANITIZE)
  set(dp_precompile ON)
endif()
option(DP_PRECOMPILE "Parse the headers of the standard library, fmt and GoogleTest once" ${dp_precompile})
# A library's files are compiled ten at a time, since most of a file's time goes into its headers. Off where a
# change should compile one file alone.
option(DP_UNITY "Compile several files of a library at once" ${dp_precompile})

# Adds to `result` all libraries that `target` links to, directly or not.
function(dp_list_links target result)
  set(found ${${result}})
  foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(links ${target} ${property})
    foreach(library IN LISTS links)
      if(TARGET "${library}" AND NOT library IN_LIST found)
        list(APPEND found ${library})
        dp_list_links(${library} found)
      endif()
    endforeach()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# There are up to five precompiled headers: g++ takes one only if it was made with the same macros,
# of which -fopenmp and -fPIC are some. Sources of the emulator begin with a header of their own.
function(dp_use_precompiled target)
  set(links)
  dp_list_links(${target} links)
  if(NOT DP_PRECOMPILE OR NOT "fmt::fmt" IN_LIST links OR "dp_cuda_on_cpu_prelude" IN_LIST links)
    return()
  endif()
  set(name dp_precompiled)
  set(libraries fmt::fmt)
  set(headers <algorithm> <array> <chrono> <cmath> <cstring> <functional> <memory> <numeric> <optional>
              <span> <string> <vector> <fmt/format.h>)
  foreach(library OpenMP::OpenMP_CXX GTest::gtest)
    if(library IN_LIST links)
      string(REGEX REPLACE ":.*" "" word ${library})
      string(APPEND name _${word})
      list(APPEND libraries ${library})
    endif()
  endforeach()
  if("GTest::gtest" IN_LIST links)
    list(PREPEND headers <gtest/gtest.h>)
  endif()
  get_target_property(is_shared ${target} POSITION_INDEPENDENT_CODE)
  if(is_shared)
    string(APPEND name _shared)
  endif()
  if(NOT TARGET ${name})
    set(empty ${PROJECT_BINARY_DIR}/precompiled.cpp)
    if(NOT EXISTS ${empty})
      file(WRITE ${empty} "")
    endif()
    add_library(${name} OBJECT ${empty})
    target_link_libraries(${name} PRIVATE dp_settings ${libraries})
    target_precompile_headers(${name} PRIVATE ${headers})
    if(is_shared)
      dp_for_shared_library(${name})
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

# What libdptrain_comm is made of. Its functions call each other directly all the same.
function(dp_for_shared_library target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
endfunction()

# For what is installed: its RUNPATH has the folders of libraries that the loader does not know, and nothing
# else, already in the build. The RUNPATH that CMake otherwise links for the build ends with an empty element,
# which stands for the current folder.
function(dp_runpath_for_installation)
  set_target_properties(${ARGN} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# Replaces the .cu files of a list by files that include six of them each. (CMake 3.25 does so for C++ alone.)
function(dp_unite_cuda target sources)
  set(united ${${sources}})
  set(cuda ${united})
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  list(FILTER united EXCLUDE REGEX "\\.cu$")
  list(TRANSFORM cuda REPLACE "(.+)" "#include \"${CMAKE_CURRENT_SOURCE_DIR}/\\1\"\n")
  while(cuda)
    list(SUBLIST cuda 0 6 some)
    list(REMOVE_ITEM cuda ${some})
    list(LENGTH united count)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${count}.cu)
    string(JOIN "" text ${some})
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND united ${file})
  endwhile()
  set(${sources} ${united} PARENT_SCOPE)
endfunction()

function(dp_library name)
  cmake_parse_arguments(ARG "FOR_SHARED" "" "SOURCES;LINK" ${ARGN})
  if(DP_UNITY)
    dp_unite_cuda(${name} ARG_SOURCES)
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${DP_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  target_link_libraries(${name} PUBLIC dp_settings ${ARG_LINK})
  if(ARG_FOR_SHARED)
    dp_for_shared_library(${name})
  endif()
  dp_use_precompiled(${name})
endfunction()

function(dp_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE dp_settings ${ARG_LINK})
  dp_make_portable(${name})
  if(NOT ARG_SOURCES MATCHES "TARGET_OBJECTS")
    dp_use_precompiled(${name})
  endif()
endfunction()
