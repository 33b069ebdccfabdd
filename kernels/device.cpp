// The GPU functions that are not operations, for builds with and without CUDA.
#include "kernels/device.hpp"

#include <cstdlib>
#include <utility>

#include "kernels/base/setting_error.hpp"
#include "kernels/bucket_link.hpp"
#include "kernels/gpu_needs.hpp"

#ifdef DP_HAVE_CUDA
#include "kernels/cuda/device.hpp"
#endif

namespace dp {

void expect_host_waits() {
  constexpr int kKeepTheUsers = 0;
  setenv("CUDA_MODULE_LOADING", "EAGER", kKeepTheUsers);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeepTheUsers);
}

#ifdef DP_HAVE_CUDA

int count_gpus(std::string* why_none) { return cuda::count_devices(why_none); }

std::string gpu_needs() {
  return fmt::format("GPUs: with an {}, cuDNN 9 and cuBLAS", cuda::needed_driver());
}

std::unique_ptr<Device> make_gpu(const DeviceOptions& options) {
  DeviceOptions made = options;
  made.kind = DeviceKind::cuda;
  return std::make_unique<cuda::CudaDevice>(made);
}

std::unique_ptr<BucketLink> make_bucket_link(Device& device, float* device_gradient,
                                             float* host_gradient,
                                             std::vector<BucketSlice> buckets) {
  DP_ASSERT(device.kind() == DeviceKind::cuda, "only a GPU needs a link to host memory");
  return cuda::make_bucket_link(cuda::as_cuda(device), device_gradient, host_gradient,
                                std::move(buckets));
}

#else

int count_gpus(std::string* why_none) {
  if (why_none != nullptr) *why_none = "this program was built without CUDA";
  return 0;
}

std::string gpu_needs() { return "GPUs: none; built without CUDA"; }

std::unique_ptr<Device> make_gpu(const DeviceOptions&) {
  throw SettingError(Setting{"device"}, "cuda",
                     "this program was built without CUDA; allowed: cpu, auto", ErrorKind::device);
}

std::unique_ptr<BucketLink> make_bucket_link(Device& device, float*, float*,
                                             std::vector<BucketSlice>) {
  DP_ASSERT(device.kind() == DeviceKind::cuda, "only a GPU needs a link to host memory");
  return nullptr;
}

#endif

}  // namespace dp
