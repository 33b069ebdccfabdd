// cuDNN and cuBLAS, opened at run time instead of linked: the same program starts on a machine
// without them (and uses the CPU), and finds them wherever they are installed.
//
// Search order: the folders below DPTRAIN_CUDA_PREFIX (environment), the loader's own places
// (LD_LIBRARY_PATH, /etc/ld.so.conf), the toolkit's usual folders, and Python's site-packages,
// where pip installs them. Required are libcudnn.so.9 and the libcublas of CUDA 13 or 12.
//
// Each C function used is a pointer in a table, under its own name. Every result goes through
// DP_CHECK_CUDNN or DP_CHECK_CUBLAS (library_check.hpp).
#pragma once

#include <cublas_v2.h>
#include <cudnn.h>

#include <string>

#include "kernels/device.hpp"

namespace dp::cuda {

class CudaDevice;

struct CudnnApi {
  decltype(&::cudnnGetVersion) get_version;
  decltype(&::cudnnGetErrorString) get_error_string;
  decltype(&::cudnnGetLastErrorString) get_last_error_string;
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&::cudnnBackendSetAttribute) set_attribute;
  decltype(&::cudnnBackendGetAttribute) get_attribute;
  decltype(&::cudnnBackendFinalize) finalize;
  decltype(&::cudnnBackendExecute) execute;
};

struct CublasApi {
  decltype(&::cublasGetProperty) get_property;
  decltype(&::cublasGetStatusString) get_status_string;
  decltype(&::cublasCreate_v2) create;
  decltype(&::cublasDestroy_v2) destroy;
  decltype(&::cublasSetStream_v2) set_stream;
  decltype(&::cublasSetWorkspace_v2) set_workspace;
  decltype(&::cublasSetMathMode) set_math_mode;
  decltype(&::cublasSetAtomicsMode) set_atomics_mode;
  decltype(&::cublasSgemm_v2) sgemm;
};

// Return the tables. Both throw Error(device) with why_missing() if a library is missing. The first
// call, from any thread, opens the libraries; they stay open.
[[nodiscard]] const CudnnApi& cudnn_api();
[[nodiscard]] const CublasApi& cublas_api();

// The libraries' handles on one device, bound to its stream. The same input gives the same bits:
// cuBLAS uses a workspace of its own, no atomics, and TF32 only if the device allows it
// or a caller of set_tf32() asks for it.
class Libraries {
 public:
  explicit Libraries(CudaDevice& device);
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  [[nodiscard]] cudnnHandle_t cudnn() const { return cudnn_; }
  [[nodiscard]] cublasHandle_t cublas() const { return cublas_; }

  // Whether products of fp32 matrices round their operands to TF32 from now on.
  void set_tf32(bool rounds);

  // Empty if both libraries can be opened. Otherwise one clause with the library that cannot be
  // opened, the places searched and the remedy.
  [[nodiscard]] static std::string why_missing();
  // "cuDNN 9.19.0, cuBLAS 13.1.0": the libraries that were opened.
  [[nodiscard]] static std::string versions();

 private:
  Device::Memory cublas_workspace_;
  cudnnHandle_t cudnn_ = nullptr;
  cublasHandle_t cublas_ = nullptr;
};

}  // namespace dp::cuda
