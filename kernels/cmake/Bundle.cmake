# The target `bundle`: dptrain, dptrun, dpbench, dptrain-pack, mpirun, the tests that need a GPU and all libraries but glibc in one
# archive that runs by unpacking (experiments/bundle/). To be included before the folders are added; the
# target itself is made when all others are known.
#
#   DP_BUNDLE_ARCHIVE   the archive's path; empty where this configuration cannot be packed
set(DP_BUNDLE_ARCHIVE "")
if(NOT DP_NATIVE AND NOT DP_SANITIZE)
  set(DP_BUNDLE_ARCHIVE
      ${PROJECT_BINARY_DIR}/dptrain-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}.tar.xz)
endif()

# Appends "program ranks" of every CTest NAME_gpu or NAME_gpu_npRANKS in `folder` and below to `result`.
function(dp_list_gpu_tests folder result)
  set(found ${${result}})
  get_property(tests DIRECTORY ${folder} PROPERTY TESTS)
  foreach(test IN LISTS tests)
    if(test MATCHES "^(.+)_gpu(_np([0-9]+))?$")
      set(program ${CMAKE_MATCH_1})
      set(ranks 1)
      if(CMAKE_MATCH_3)
        set(ranks ${CMAKE_MATCH_3})
      endif()
      if(TARGET ${program})
        list(APPEND found "${program} ${ranks}")
      endif()
    endif()
  endforeach()
  get_property(inner DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(next IN LISTS inner)
    dp_list_gpu_tests(${next} found)
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

function(dp_add_bundle)
  set(gpu_tests)
  dp_list_gpu_tests(${PROJECT_SOURCE_DIR} gpu_tests)
  list(JOIN gpu_tests "\n" lines)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gpu_tests.txt CONTENT "${lines}\n") # for tests/gpu.sh
  get_property(gpu_cases GLOBAL PROPERTY DP_GPU_CASES) # "script case" of the tests in Python that need a GPU
  list(JOIN gpu_cases "\n" lines)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gpu_cases.txt CONTENT "${lines}\n")

  if(NOT DP_BUNDLE_ARCHIVE)
    add_custom_target(bundle
      COMMAND ${CMAKE_COMMAND} -E echo "a bundle needs a build with DP_NATIVE=OFF and without DP_SANITIZE"
      COMMAND ${CMAKE_COMMAND} -E false)
    return()
  endif()
  set(programs)
  foreach(line IN LISTS gpu_tests)
    string(REGEX REPLACE " .*" "" program "${line}")
    list(APPEND programs ${program})
  endforeach()
  list(REMOVE_DUPLICATES programs)
  set(gpu_arguments)
  foreach(program IN LISTS programs)
    list(APPEND gpu_arguments --gpu-test $<TARGET_FILE:${program}>)
  endforeach()
  if(programs)
    list(APPEND gpu_arguments --gpu-test-list ${PROJECT_BINARY_DIR}/gpu_tests.txt
         --gpu-case-list ${PROJECT_BINARY_DIR}/gpu_cases.txt)
  endif()
  add_library(dp_older_glibc MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/experiments/bundle/older_glibc.c)
  add_custom_target(bundle
    COMMAND ${PROJECT_SOURCE_DIR}/experiments/bundle/make_bundle.sh --out ${DP_BUNDLE_ARCHIVE}
            --mpirun ${MPIEXEC_EXECUTABLE} --older-glibc $<TARGET_FILE:dp_older_glibc> ${gpu_arguments}
            $<TARGET_FILE:dptrain> $<TARGET_FILE:dptrun> $<TARGET_FILE:dpbench>
            $<TARGET_FILE:dptrain-pack>
    DEPENDS dptrain dptrun dpbench dptrain-pack dp_older_glibc ${programs}
    COMMENT "Packing ${DP_BUNDLE_ARCHIVE}"
    VERBATIM USES_TERMINAL)
endfunction()
cmake_language(DEFER CALL dp_add_bundle)
