# Finds the headers of cuDNN 9 or later, for find_package(CUDNN 9.8). The library itself is opened when
# the program runs (kernels/cuda/libraries.hpp), so it need not be on the machine that builds.
#
#   CUDNN_FOUND  CUDNN_INCLUDE_DIR  CUDNN_VERSION
#
# It looks in CUDNN_ROOT (variable or environment), CUDNN_PATH (environment), DP_CUDA_ROOTS (a list that
# DpCuda.cmake sets: the toolkit and its neighbours, pip's nvidia/ folders) and the system's own folders.
find_path(CUDNN_INCLUDE_DIR cudnn.h
  HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ENV CUDNN_PATH ${DP_CUDA_ROOTS}
  PATH_SUFFIXES include cudnn/include)
mark_as_advanced(CUDNN_INCLUDE_DIR)

set(CUDNN_VERSION "")
foreach(name cudnn_version.h cudnn_version_v9.h)
  if(NOT CUDNN_VERSION AND CUDNN_INCLUDE_DIR AND EXISTS ${CUDNN_INCLUDE_DIR}/${name})
    file(STRINGS ${CUDNN_INCLUDE_DIR}/${name} lines
         REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
    foreach(part MAJOR MINOR PATCHLEVEL)
      if(lines MATCHES "CUDNN_${part} +([0-9]+)")
        list(APPEND CUDNN_VERSION ${CMAKE_MATCH_1})
      endif()
    endforeach()
    string(REPLACE ";" "." CUDNN_VERSION "${CUDNN_VERSION}")
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_INCLUDE_DIR CUDNN_VERSION
                                  VERSION_VAR CUDNN_VERSION)
