# dp_test(NAME SOURCES ... [LINK ...] [LABELS ...] [DEVICE] [OPTIMISED]) registers a test program of one
# process, and dp_mpi_test(NAME NP 1 2 4 SOURCES ... [the same]) one that runs under mpirun, once for
# every number of ranks. Labels: cpu or mpi, and what LABELS adds.
#
# Both also give the label quick, for the everyday loop: to tests of one process, and to those of 1 and
# 3 ranks, on the processor. LONG: not to these. dp_quick(TEST...) gives it to tests made by add_test.
#
# OPTIMISED: the test's own code computes for seconds. That of others is compiled with -O1, which takes
# three quarters of the compiler's time; what it tests is compiled as ever.
#
# DEVICE: the program runs on the device that the environment's DP_TEST_DEVICE names, cpu or cuda, and
# is registered up to three times: as NAME on the CPU; as NAME_on_cpu, where the headers of CUDA are
# there, a second program in which the CUDA backend runs on the processor (label cuda_on_cpu); and as
# NAME_gpu, where the CUDA backend is built, on the GPU (label gpu; skips by name where there is none).
#
# Tests that do not apply skip by name (skipped.hpp); ctest shows a program as skipped where all did.
include(GoogleTest)

# Under an emulator of another processor everything takes ten times as long, with a sanitizer up to five times.
set(DP_TEST_TIMEOUT_S 120)
set(DP_TEST_LIMIT_S 60)  # of a single test of many ranks (mpi_main.cpp)
if(CMAKE_CROSSCOMPILING_EMULATOR)
  set(DP_TEST_TIMEOUT_S 1200)
elseif(DP_SANITIZE)
  set(DP_TEST_TIMEOUT_S 600)
  set(DP_TEST_LIMIT_S 300)
endif()

# Whole stacks, since leaks are told apart by the names in them; any order of libraries, since some
# tests preload one.
set(DP_ASAN_OPTIONS
  ASAN_OPTIONS=fast_unwind_on_malloc=0:verify_asan_link_order=0:detect_stack_use_after_return=0
  LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan_suppressions.txt:print_suppressions=0)

# As root or not, with fewer cores than ranks or not: the same command. Ranks that wait give way.
# ThreadSanitizer leaves out what is Open MPI's, by name.
set(DP_MPI_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  PRTE_MCA_rmaps_default_mapping_policy=:OVERSUBSCRIBE  # the same in Open MPI 5
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMP_NUM_THREADS=1 DP_TEST_LIMIT_S=${DP_TEST_LIMIT_S} DP_SANITIZE=${DP_SANITIZE} ${DP_ASAN_OPTIONS} TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt
  CACHE INTERNAL "What every test under mpirun runs with")

# The program NAME_on_cpu, linked to the _on_cpu of what NAME is linked to. Where the CUDA backend is
# built NAME is compiled with the same definitions, so that its objects serve both.
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

# Registers `program` for each number of ranks as name_np... Ranks beyond the number of cores take no
# more of them.
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
