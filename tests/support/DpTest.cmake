# dp_test(NAME SOURCES ... [LINK ...] [LABELS ...] [DEVICE] [OPTIMISED] [LONG]) registers a test
# program of one process. dp_mpi_test(NAME NP 1 2 4 SOURCES ... [the same]) registers one that runs
# under mpirun, once for each number of ranks. Labels: cpu or mpi, and the LABELS.
#
# The label quick marks tests for the everyday loop: CPU tests of one process, or of 1 and 3 ranks.
# LONG leaves it out. dp_quick(TEST...) adds it to tests made by add_test.
#
# OPTIMISED: for tests whose own code computes for seconds. The code of other tests is compiled with
# -O1, which takes three quarters of the compile time. The code under test is compiled as usual.
#
# DEVICE: the program runs on the device in the environment variable DP_TEST_DEVICE, cpu or cuda. It
# is
# registered up to three times:
#   NAME          on the CPU
#   NAME_on_cpu   if CUDA's headers are installed: a second program, whose CUDA backend runs on the
#                 CPU (label cuda_on_cpu)
#   NAME_gpu      if the CUDA backend is built: on the GPU (label gpu; skips by name without a GPU)
#
# Tests that do not apply skip by name (skipped.hpp). ctest shows a program as skipped if all its
# tests
# skipped.
include(GoogleTest)

# An emulator of another processor takes ten times as long, a sanitizer up to five times.
set(DP_TEST_TIMEOUT_S 120)
set(DP_TEST_LIMIT_S 60)  # for a single test of several ranks (mpi_main.cpp)
if(CMAKE_CROSSCOMPILING_EMULATOR)
  set(DP_TEST_TIMEOUT_S 1200)
elseif(DP_SANITIZE)
  set(DP_TEST_TIMEOUT_S 600)
  set(DP_TEST_LIMIT_S 300)
endif()

# Full stacks, because the suppressions match names in them; any order of libraries, because some tests
# preload one.
set(DP_ASAN_OPTIONS
  ASAN_OPTIONS=fast_unwind_on_malloc=0:verify_asan_link_order=0:detect_stack_use_after_return=0
  LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan_suppressions.txt:print_suppressions=0)

# The same command works as root or not, and with fewer cores than ranks. Waiting ranks yield.
# ThreadSanitizer ignores Open MPI's code, by name.
set(DP_MPI_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  PRTE_MCA_rmaps_default_mapping_policy=:OVERSUBSCRIBE  # the same in Open MPI 5
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMP_NUM_THREADS=1 DP_TEST_LIMIT_S=${DP_TEST_LIMIT_S} DP_SANITIZE=${DP_SANITIZE} ${DP_ASAN_OPTIONS} TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt
  CACHE INTERNAL "What every test under mpirun runs with")

# The program NAME_on_cpu, linked to the _on_cpu variants of NAME's libraries. If the CUDA backend is
# built, NAME is compiled with the same definitions, so both programs use the same objects.
function(dp_program_on_cpu name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  set(libraries)
  foreach(library IN LISTS ARG_LINK)
    if(TARGET ${library}_on_cpu)
      set(library ${library}_on_cpu)
    endif()
    list(APPEND libraries ${library})
  endforeach()
  if(DP_HAVE_CUDA)
    set(ARG_SOURCES $<TARGET_OBJECTS:${name}>)
  endif()
  dp_program(${name}_on_cpu SOURCES ${ARG_SOURCES} LINK ${libraries})
  set_target_properties(${name}_on_cpu PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

function(dp_set_test_level is_optimised)
  if(NOT is_optimised)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
  endif()
endfunction()

function(dp_quick)
  foreach(test IN LISTS ARGN)
    set_property(TEST ${test} APPEND PROPERTY LABELS quick)
  endforeach()
endfunction()

function(dp_test name)
  cmake_parse_arguments(ARG "DEVICE;OPTIMISED;LONG" "" "SOURCES;LINK;LABELS" ${ARGN})
  dp_set_test_level(${ARG_OPTIMISED} ${ARG_SOURCES})
  set(environment "${DP_ASAN_OPTIONS}")
  set(quick quick)
  if(ARG_LONG)
    set(quick)
  endif()
  if(NOT ARG_DEVICE)
    dp_program(${name} SOURCES ${ARG_SOURCES} LINK dp_test_main ${ARG_LINK})
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
      LABELS "cpu;${quick};${ARG_LABELS}" TIMEOUT ${DP_TEST_TIMEOUT_S} SKIP_RETURN_CODE 77
      ENVIRONMENT "${environment}")
    return()
  endif()

  dp_program(${name} SOURCES ${ARG_SOURCES} LINK dp_device_main ${ARG_LINK})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "cpu;${quick};${ARG_LABELS}" TIMEOUT ${DP_TEST_TIMEOUT_S} SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment};DP_TEST_DEVICE=cpu")
  if(DP_CUDA_ON_CPU)
    dp_program_on_cpu(${name} SOURCES ${ARG_SOURCES} LINK dp_device_main ${ARG_LINK})
    add_test(NAME ${name}_on_cpu COMMAND ${name}_on_cpu)
    set_tests_properties(${name}_on_cpu PROPERTIES
      LABELS "cuda_on_cpu;${ARG_LABELS}" TIMEOUT ${DP_TEST_TIMEOUT_S} SKIP_RETURN_CODE 77
      ENVIRONMENT "${environment};DP_TEST_DEVICE=cuda")
  endif()
  if(DP_HAVE_CUDA)
    add_test(NAME ${name}_gpu COMMAND ${name})
    set_tests_properties(${name}_gpu PROPERTIES
      LABELS "gpu;${ARG_LABELS}" TIMEOUT ${DP_TEST_TIMEOUT_S} SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu
      ENVIRONMENT "${environment};DP_TEST_DEVICE=cuda")
    set_property(GLOBAL APPEND PROPERTY DP_GPU_TEST_PROGRAMS ${name})
  endif()
endfunction()

# Registers `program` for each number of ranks as name_np... A test counts as using at most all cores.
cmake_host_system_information(RESULT DP_CORES QUERY NUMBER_OF_LOGICAL_CORES)
function(dp_add_mpi_tests name program)
  cmake_parse_arguments(ARG "LONG" "" "NP;ARGUMENTS;LABELS;ENVIRONMENT;PROPERTIES" ${ARGN})
  foreach(np IN LISTS ARG_NP)
    set(processors ${np})
    if(np GREATER DP_CORES)
      set(processors ${DP_CORES})
    endif()
    add_test(NAME ${name}_np${np} COMMAND ${MPIEXEC_EXECUTABLE} -np ${np} $<TARGET_FILE:${program}>
             ${ARG_ARGUMENTS})
    set_tests_properties(${name}_np${np} PROPERTIES
      LABELS "${ARG_LABELS}" TIMEOUT ${DP_TEST_TIMEOUT_S} PROCESSORS ${processors} SKIP_RETURN_CODE 77
      ENVIRONMENT "${DP_MPI_TEST_ENVIRONMENT};${ARG_ENVIRONMENT}" ${ARG_PROPERTIES})
    if(mpi IN_LIST ARG_LABELS AND np MATCHES "^[13]$" AND NOT ARG_LONG)
      dp_quick(${name}_np${np})
    endif()
  endforeach()
endfunction()

function(dp_mpi_test name)
  cmake_parse_arguments(ARG "DEVICE;OPTIMISED;LONG" "BTL" "NP;SOURCES;LINK;LABELS" ${ARGN})
  dp_set_test_level(${ARG_OPTIMISED} ${ARG_SOURCES})
  set(environment)
  set(long)
  if(ARG_LONG)
    set(long LONG)
  endif()
  if(ARG_BTL)
    list(APPEND environment OMPI_MCA_btl=${ARG_BTL})
  endif()
  if(NOT ARG_DEVICE)
    dp_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} dp_mpi_main)
    dp_add_mpi_tests(${name} ${name} ${long} NP ${ARG_NP} LABELS mpi ${ARG_LABELS}
                     ENVIRONMENT ${environment})
    return()
  endif()

  dp_program(${name} SOURCES ${ARG_SOURCES} LINK dp_mpi_device_main ${ARG_LINK})
  dp_add_mpi_tests(${name} ${name} ${long} NP ${ARG_NP} LABELS mpi ${ARG_LABELS}
                   ENVIRONMENT ${environment} DP_TEST_DEVICE=cpu)
  if(DP_CUDA_ON_CPU)
    dp_program_on_cpu(${name} SOURCES ${ARG_SOURCES} LINK dp_mpi_device_main ${ARG_LINK})
    dp_add_mpi_tests(${name}_on_cpu ${name}_on_cpu NP ${ARG_NP} LABELS cuda_on_cpu ${ARG_LABELS}
                     ENVIRONMENT ${environment} DP_TEST_DEVICE=cuda)
  endif()
  if(DP_HAVE_CUDA)
    dp_add_mpi_tests(${name}_gpu ${name} NP ${ARG_NP} LABELS gpu ${ARG_LABELS}
                     ENVIRONMENT ${environment} DP_TEST_DEVICE=cuda
                     PROPERTIES RESOURCE_LOCK gpu)
    set_property(GLOBAL APPEND PROPERTY DP_GPU_MPI_TEST_PROGRAMS ${name})
  endif()
endfunction()
