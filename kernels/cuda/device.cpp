// A GPU as a device. This file finds and makes devices, says why there is no usable GPU (driver,
// libraries, visibility), and allocates memory. It implements recordings as CUDA graphs and time
// marks as events. Everything is enqueued on one stream. upload(), download() and synchronize()
// wait for this stream.
#include "kernels/cuda/device.hpp"

#include <algorithm>
#include <fstream>
#include <vector>

#include "kernels/base/setting_error.hpp"
#include "kernels/cuda/libraries.hpp"

namespace dp::cuda {

namespace {

// "13.0" of 13000
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// "535.104.05": the driver's release according to its kernel module; empty if unknown.
std::string installed_driver() {
  std::string release;
  std::ifstream("/sys/module/nvidia/version") >> release;
  return release;
}

// The reason why there is no usable GPU, in a few words.
std::string why_no_device(cudaError_t code) {
  int driver = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaGetLastError());
  if (driver == 0) {
    return fmt::format("no NVIDIA driver was found; this build needs an {}", needed_driver());
  }
  if (code == cudaErrorInsufficientDriver) {
    const std::string release = installed_driver();
    return fmt::format("this build needs an {}; found {}", needed_driver(),
                       release.empty()
                           ? fmt::format("one for CUDA {}", version_text(driver))
                           : fmt::format("{} (CUDA {})", release, version_text(driver)));
  }
  if (code == cudaSuccess || code == cudaErrorNoDevice) {
    return "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES set?)";
  }
  return fmt::format("CUDA reports: {}", cudaGetErrorString(code));
}

// The number of GPUs. If it is 0, sets `reason`.
int count_or_reason(std::string& reason) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  reason = why_no_device(code);
  return 0;
}

[[noreturn]] void refuse_gpu(const std::string& why) {
  throw SettingError(Setting{"device"}, "cuda", why, ErrorKind::device);
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  DP_CHECK_CUDA(cudaStreamIsCapturing(stream, &status));
  return status == cudaStreamCaptureStatusActive;
}

// ---- recordings -------------------------------------------------------------------------------

// The first replay runs the operations one by one, so that libraries load their kernels. The second
// one captures them as a CUDA graph. From then on the graph is launched.
class GraphRecording final : public Recording {
 public:
  GraphRecording(const CudaDevice& device, std::function<void()> operations)
      : device_(device), operations_(std::move(operations)) {}
  ~GraphRecording() override {
    if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
  }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void replay() override {
    if (!has_run_) {
      operations_();
      has_run_ = true;
      return;
    }
    if (graph_ == nullptr) capture();
    // A launch blocks while too many launches are pending.
    const DeviceWaits::Wait wait(device_.waits(), "the launches before this one");
    DP_CHECK_CUDA(cudaGraphLaunch(graph_, device_.stream()));
  }

  [[nodiscard]] bool is_captured() const override { return graph_ != nullptr; }

 private:
  void capture() {
    const cudaStream_t stream = device_.stream();
    cudaGraph_t graph = nullptr;
    // Thread-local, because other threads continue to use their own streams.
    DP_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      operations_();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &graph));
      if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
      static_cast<void>(cudaGetLastError());
      throw;
    }
    DP_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    // Without this flag the whole graph would run with the priority of the stream that launches it,
    // and marks and copies of buckets (bucket_link.cu) would wait for the kernels of backward.
    const cudaError_t code =
        cudaGraphInstantiate(&graph_, graph, cudaGraphInstantiateFlagUseNodePriority);
    static_cast<void>(cudaGraphDestroy(graph));
    DP_CHECK_CUDA(code);
  }

  const CudaDevice& device_;
  std::function<void()> operations_;
  bool has_run_ = false;
  cudaGraphExec_t graph_ = nullptr;
};

class EventMarks final : public TimeMarks {
 public:
  EventMarks(const CudaDevice& device, std::size_t count) : device_(device) {
    events_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) events_.emplace_back(cudaEventDefault);
  }
  void mark(std::size_t i) override {
    const cudaStream_t stream = device_.stream();
    // While a graph is captured, a plain record would only order work. An external record takes the
    // time at every launch of the graph.
    const unsigned flags = is_capturing(stream) ? cudaEventRecordExternal : cudaEventRecordDefault;
    DP_CHECK_CUDA(cudaEventRecordWithFlags(events_.at(i).get(), stream, flags));
  }
  [[nodiscard]] double seconds(std::size_t from, std::size_t to) const override {
    // Wait until the event is complete. The caller may know through a BucketLink that the work has
    // ended, but the event can complete slightly later.
    device_.wait_for(events_.at(to).get(), "a step's operations");
    float milliseconds = 0;
    DP_CHECK_CUDA(
        cudaEventElapsedTime(&milliseconds, events_.at(from).get(), events_.at(to).get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  const CudaDevice& device_;
  std::vector<Event> events_;
};

}  // namespace

// ---- finding and making -------------------------------------------------------------------------

int count_devices(std::string* why_none) {
  std::string reason;
  const int count = count_or_reason(reason);
  if (count == 0) {
    if (why_none != nullptr) *why_none = reason;
    return 0;
  }
  // A GPU is of no use without the libraries.
  reason = Libraries::why_missing();
  if (reason.empty()) return count;
  if (why_none != nullptr) *why_none = reason;
  return 0;
}

std::string needed_driver() {
  // The runtime is linked statically. It runs with the first driver of its major release of CUDA
  // and with all later drivers (NVIDIA's table of minor version compatibility).
  constexpr int kMajor = CUDART_VERSION / 1000;
  static_assert(kMajor >= 12, "the first drivers of older releases of CUDA are not named here");
  const std::string release = kMajor == 12 ? "525 or later" : kMajor == 13 ? "580 or later" : "";
  const std::string cuda = fmt::format("CUDA {}", version_text(CUDART_VERSION));
  return release.empty() ? fmt::format("NVIDIA driver for {}", cuda)
                         : fmt::format("NVIDIA driver {} ({})", release, cuda);
}

CudaDevice& as_cuda(Device& device) { return static_cast<CudaDevice&>(device); }

CudaDevice::Current::Current(int wanted) : index(wanted) {
  std::string reason;
  const int count = count_or_reason(reason);
  if (count == 0) refuse_gpu(reason + "; allowed: cpu, auto");
  reason = Libraries::why_missing();
  if (!reason.empty()) refuse_gpu(reason);
  index = wanted % count;
  DP_CHECK_CUDA(cudaSetDevice(index));
}

CudaDevice::CudaDevice(const DeviceOptions& options)
    : Device(options), current_(options.index), allows_tf32_(options.allow_tf32) {
  cudaDeviceProp properties{};
  DP_CHECK_CUDA(cudaGetDeviceProperties(&properties, current_.index));
  name_ = properties.name;
  multiprocessors_ = checked_cast<unsigned>(properties.multiProcessorCount);
  capability_ = properties.major * 10 + properties.minor;
  if (capability_ < 80) {
    refuse_gpu(fmt::format(
        "{} has compute capability {}.{}; this program needs 8.0 or later (Ampere); allowed: cpu",
        name_, properties.major, properties.minor));
  }
  libraries_ = std::make_unique<Libraries>(*this);
}

CudaDevice::~CudaDevice() {
  const DeviceWaits::Wait wait(waits(), "its last operations");
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
}

void CudaDevice::wait_for(cudaStream_t stream, const char* what, DeviceWaits::Kind kind) const {
  const DeviceWaits::Wait wait(waits(), what, kind);
  DP_CHECK_CUDA(cudaStreamSynchronize(stream));
}

void CudaDevice::wait_for(cudaEvent_t event, const char* what) const {
  const DeviceWaits::Wait wait(waits(), what);
  DP_CHECK_CUDA(cudaEventSynchronize(event));
}

// After a fault every call returns the fault's error until the process ends, so it is enough to
// query an idle stream.
void CudaDevice::check() const {
  const cudaError_t code = cudaStreamQuery(idle_.get());
  if (code == cudaSuccess || code == cudaErrorNotReady) return;
  static_cast<void>(cudaGetLastError());
  throw_error(ErrorKind::device, "the GPU has failed: {} ({}); the cause is a kernel or the device",
              cudaGetErrorString(code), cudaGetErrorName(code));
}

void CudaDevice::make_current() const { DP_CHECK_CUDA(cudaSetDevice(current_.index)); }

std::string CudaDevice::description() const {
  std::size_t free = 0, total = 0;
  DP_CHECK_CUDA(cudaMemGetInfo(&free, &total));
  int driver = 0;
  DP_CHECK_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format("{}, {:.0f} GiB, driver for CUDA {}, {}", name_,
                     static_cast<double>(total) / 0x1p30, version_text(driver),
                     Libraries::versions());
}

// All GPUs from Ampere on have bf16 tensor cores.
bool CudaDevice::supports(DataType) const { return true; }

// ---- memory -------------------------------------------------------------------------------------

void CudaDevice::reserve_scratch(std::size_t bytes) {
  scratch_bytes_ = std::max(scratch_bytes_, bytes);
}

std::byte* CudaDevice::scratch() {
  if (scratch_size_ < scratch_bytes_) {
    // Operations that use the old memory must have run before it is freed.
    synchronize();
    scratch_.reset();
    scratch_ = allocate(scratch_bytes_);
    scratch_size_ = scratch_bytes_;
  }
  return scratch_.get();
}

// Releasing memory waits for all running work, so the wait is registered.
Device::Memory CudaDevice::owner_of(void* memory, cudaError_t (*release)(void*)) const {
  return {static_cast<std::byte*>(memory), [waits = shared_waits(), release](std::byte* p) {
            const DeviceWaits::Wait wait(*waits, "the release of memory");
            static_cast<void>(release(p));
          }};
}

Device::Memory CudaDevice::allocate(std::size_t bytes) {
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const DeviceWaits::Wait wait(waits(), "an allocation");
  const cudaError_t code = cudaMalloc(&memory, size);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw OutOfMemory(
        fmt::format("out of memory: {} MiB more were requested and {} MiB are free on {}; try a "
                    "smaller batch or model",
                    size >> 20, free_bytes() >> 20, name_));
  }
  DP_CHECK_CUDA(code);
  Memory owner = owner_of(memory, cudaFree);
  DP_CHECK_CUDA(cudaMemsetAsync(memory, 0, size, stream_.get()));
  synchronize();
  return owner;
}

Device::Memory CudaDevice::allocate_host(std::size_t bytes) {
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const DeviceWaits::Wait wait(waits(), "an allocation");
  const cudaError_t code =
      cudaHostAlloc(&memory, size, cudaHostAllocPortable | cudaHostAllocMapped);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw OutOfMemory(
        fmt::format("out of memory: {} MiB of pinned host memory were requested; try a smaller "
                    "batch",
                    size >> 20));
  }
  DP_CHECK_CUDA(code);
  Memory owner = owner_of(memory, cudaFreeHost);
  std::fill_n(owner.get(), size, std::byte{0});
  return owner;
}

std::size_t CudaDevice::free_bytes() const {
  std::size_t free = 0, total = 0;
  DP_CHECK_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

void CudaDevice::upload(void* device_memory, const void* host_memory, std::size_t bytes) {
  if (bytes == 0) return;
  // If the host memory is not pinned, the copy call itself may block.
  const DeviceWaits::Wait wait(waits(), "a copy to the GPU");
  DP_CHECK_CUDA(
      cudaMemcpyAsync(device_memory, host_memory, bytes, cudaMemcpyHostToDevice, stream_.get()));
  synchronize();
}

void CudaDevice::download(void* host_memory, const void* device_memory, std::size_t bytes) {
  if (bytes == 0) return;
  const DeviceWaits::Wait wait(waits(), "a copy to the host");
  DP_CHECK_CUDA(
      cudaMemcpyAsync(host_memory, device_memory, bytes, cudaMemcpyDeviceToHost, stream_.get()));
  synchronize();
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  DP_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()));
}

void CudaDevice::fill_zero(void* device_memory, std::size_t bytes) {
  if (bytes > 0) DP_CHECK_CUDA(cudaMemsetAsync(device_memory, 0, bytes, stream_.get()));
}

void CudaDevice::synchronize() { wait_for(stream_.get(), "the operations enqueued so far"); }

std::unique_ptr<Recording> CudaDevice::record(std::function<void()> operations) {
  return std::make_unique<GraphRecording>(*this, std::move(operations));
}

std::unique_ptr<TimeMarks> CudaDevice::make_time_marks(std::size_t count) {
  return std::make_unique<EventMarks>(*this, count);
}

}  // namespace dp::cuda
