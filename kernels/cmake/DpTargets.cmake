# dp_library(NAME SOURCES ... [LINK ...]) and dp_program(NAME SOURCES ... [LINK ...]): targets with
# the project's standard, warnings and sanitizers. Includes are written by path from the root.

add_library(dp_settings INTERFACE)
target_compile_features(dp_settings INTERFACE cxx_std_20)
target_include_directories(dp_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(dp_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                            -Wformat=2 -fopenmp-simd>
  # g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
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

function(dp_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC dp_settings ${ARG_LINK})
endfunction()

function(dp_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE dp_settings ${ARG_LINK})
endfunction()
