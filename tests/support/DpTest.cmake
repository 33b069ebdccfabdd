# dp_test(NAME SOURCES ... [LINK ...] [LABELS ...]) registers a test program of one process, and
# dp_mpi_test(NAME NP 1 2 4 SOURCES ... [LINK ...] [BTL tcp,self] [LABELS ...]) one that runs under
# mpirun, once for every number of ranks. Labels: cpu or mpi, and what LABELS adds.
include(GoogleTest)

# As root or not, with fewer cores than ranks or not: the same command. Ranks that wait give way.
# TSan: Open MPI's own locks at start and end are taken in two orders.
set(DP_MPI_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=detect_deadlocks=0
  CACHE INTERNAL "What every test under mpirun runs with")

function(dp_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;LABELS" ${ARGN})
  dp_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "cpu;${ARG_LABELS}" TIMEOUT 120 ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
endfunction()

function(dp_mpi_test name)
  cmake_parse_arguments(ARG "" "BTL" "NP;SOURCES;LINK;LABELS" ${ARGN})
  dp_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} dp_mpi_main)
  set(environment ${DP_MPI_TEST_ENVIRONMENT})
  if(ARG_BTL)
    list(APPEND environment OMPI_MCA_btl=${ARG_BTL})
  endif()
  foreach(np IN LISTS ARG_NP)
    add_test(NAME ${name}_np${np} COMMAND ${MPIEXEC_EXECUTABLE} -np ${np} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}_np${np} PROPERTIES
      LABELS "mpi;${ARG_LABELS}" TIMEOUT 120 PROCESSORS ${np} ENVIRONMENT "${environment}")
  endforeach()
endfunction()
