# Finds the packages that dptrain stands on. A missing one stops the configuration with the name of
# the Debian/Ubuntu package that brings it.

function(dp_need found what package)
  if(NOT ${found})
    message(FATAL_ERROR "dptrain needs ${what}. On Debian and Ubuntu: apt-get install ${package}")
  endif()
endfunction()

find_package(Threads REQUIRED)

find_package(OpenMP COMPONENTS CXX QUIET)
dp_need(OpenMP_CXX_FOUND "OpenMP" "g++")

set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS C QUIET)
dp_need(MPI_C_FOUND "Open MPI" "libopenmpi-dev openmpi-bin")

if(DP_PORTABLE)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so) # of the packages below; of oneDNN Debian has no .a
  set(Boost_USE_STATIC_LIBS ON)
endif()

find_package(Boost 1.74 COMPONENTS program_options QUIET)
dp_need(Boost_PROGRAM_OPTIONS_FOUND "Boost.Program_options" "libboost-program-options-dev")

find_package(Eigen3 3.3 NO_MODULE QUIET)
dp_need(Eigen3_FOUND "Eigen 3" "libeigen3-dev")

find_package(fmt QUIET)
dp_need(fmt_FOUND "{fmt}" "libfmt-dev")

if(DP_PORTABLE)
  set_property(TARGET fmt::fmt APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
endif()

find_package(HDF5 COMPONENTS C QUIET)
dp_need(HDF5_FOUND "HDF5" "libhdf5-dev")
add_library(dp_hdf5 INTERFACE)
target_include_directories(dp_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
if(DP_PORTABLE)
  # Without libcurl and libcrypto, which belong to a driver for remote files that nothing here refers to.
  foreach(name hdf5_serial sz aec z)
    find_library(DP_STATIC_${name} ${name} REQUIRED)
    mark_as_advanced(DP_STATIC_${name})
    target_link_libraries(dp_hdf5 INTERFACE ${DP_STATIC_${name}})
  endforeach()
  target_link_libraries(dp_hdf5 INTERFACE m ${CMAKE_DL_LIBS} Threads::Threads)
else()
  target_link_libraries(dp_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
endif()

# libjpeg-turbo, which has pixels of four bytes, and libpng.
find_package(JPEG QUIET)
find_package(PNG QUIET)
set(IMAGE_LIBRARIES_FOUND FALSE)
if(JPEG_FOUND AND PNG_FOUND)
  set(IMAGE_LIBRARIES_FOUND TRUE)
endif()
dp_need(IMAGE_LIBRARIES_FOUND "libjpeg-turbo and libpng" "libjpeg-dev libpng-dev")

# oneDNN: 2.6 or later, also 3.x (kernels/cpu/onednn.hpp).
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
set(DNNL_FOUND FALSE)
if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
  set(DNNL_FOUND TRUE)
  file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_version_lines
       REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" DNNL_VERSION
         "${dnnl_version_lines}")
  if(DNNL_VERSION VERSION_LESS 2.6)
    message(FATAL_ERROR "dptrain needs oneDNN 2.6 or later; ${DNNL_LIBRARY} is ${DNNL_VERSION}")
  endif()
endif()
dp_need(DNNL_FOUND "oneDNN 2.6" "libdnnl-dev")
add_library(dp_dnnl INTERFACE)
target_include_directories(dp_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(dp_dnnl INTERFACE ${DNNL_LIBRARY})

find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
set(XXHASH_FOUND FALSE)
if(XXHASH_INCLUDE_DIR AND XXHASH_LIBRARY)
  set(XXHASH_FOUND TRUE)
endif()
dp_need(XXHASH_FOUND "xxHash" "libxxhash-dev")
add_library(dp_xxhash INTERFACE)
target_include_directories(dp_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_link_libraries(dp_xxhash INTERFACE ${XXHASH_LIBRARY})

if(DP_TESTS)
  find_package(GTest QUIET)
  dp_need(GTest_FOUND "GoogleTest" "libgtest-dev")
endif()

if(DP_BENCH)
  find_package(benchmark QUIET)
  dp_need(benchmark_FOUND "Google Benchmark" "libbenchmark-dev")
endif()

# Debian's names for linking lie in folders of their own (openmpi/lib, hdf5/serial), and the libraries where
# the loader looks by itself. Such folders need no place in a RUNPATH.
foreach(library IN LISTS MPI_C_LIBRARIES HDF5_C_LIBRARIES)
  if(IS_ABSOLUTE "${library}")
    file(REAL_PATH "${library}" real)
    cmake_path(GET library PARENT_PATH folder)
    cmake_path(GET real PARENT_PATH real_folder)
    foreach(known IN LISTS CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
      file(REAL_PATH "${known}" known)
      if(known STREQUAL real_folder)
        list(APPEND CMAKE_PLATFORM_IMPLICIT_LINK_DIRECTORIES "${folder}")
      endif()
    endforeach()
  endif()
endforeach()

# The CUDA backend: DP_HAVE_CUDA, dp_cuda_headers.
include(DpCuda)

function(dp_print_summary)
  message(STATUS "dptrain ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  message(STATUS "  MPI       ${MPI_C_LIBRARIES} (MPI ${MPI_C_VERSION})")
  message(STATUS "  oneDNN    ${DNNL_VERSION}")
  message(STATUS "  HDF5      ${HDF5_VERSION}")
  message(STATUS "  Eigen     ${Eigen3_VERSION}")
  message(STATUS "  Boost     ${Boost_VERSION}")
  message(STATUS "  CUDA      ${DP_CUDA_SUMMARY}")
  message(STATUS "  tests     ${DP_TESTS}")
endfunction()
