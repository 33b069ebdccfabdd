#include "kernels/cpu/device.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/host_memory.hpp"

namespace dp::cpu {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLargeBytes = 64u << 20;

// Instruction sets, the widest first, with the number of floats per vector. Results differ in their
// last bits from one set to the next.
struct InstructionSet {
  dnnl::cpu_isa isa;
  std::size_t floats;
  const char* name;
};

// The instruction set that oneDNN uses: the processor's, or a smaller one if ONEDNN_MAX_CPU_ISA
// (DNNL_MAX_CPU_ISA in older versions) is set. oneDNN's blocked kernels use vectors of 16 floats
// (AVX-512) or 8 floats (AVX2). For a processor with neither, which includes all that are not
// x86-64, the vector is one float and activations are NHWC.
const InstructionSet& instruction_set() {
#if defined(__x86_64__)
  static constexpr std::array<InstructionSet, 7> kSets = {{
      {dnnl::cpu_isa::avx512_core_amx, 16, "AVX-512 with AMX"},
      {dnnl::cpu_isa::avx512_core_bf16, 16, "AVX-512 with BF16"},
      {dnnl::cpu_isa::avx512_core, 16, "AVX-512"},
      {dnnl::cpu_isa::avx2, 8, "AVX2"},
      {dnnl::cpu_isa::avx, 1, "AVX"},
      {dnnl::cpu_isa::sse41, 1, "SSE4.1"},
      {dnnl::cpu_isa{}, 1, "no SSE4.1"},
  }};
  // The flags of an instruction set include the flags of the sets that it contains.
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return *std::ranges::find_if(kSets, [has](const InstructionSet& set) {
    const auto needed = static_cast<unsigned>(set.isa);
    return (has & needed) == needed;
  });
#else
#if defined(__aarch64__)
  static constexpr const char* kName = "arm64";
#else
  static constexpr const char* kName = "not x86-64";
#endif
  static constexpr InstructionSet kOnly = {dnnl::cpu_isa{}, 1, kName};
  return kOnly;
#endif
}

bool has_avx512_bf16() {
#if defined(__x86_64__)
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(instruction_set().isa) & kNeeded) == kNeeded;
#else
  return false;
#endif
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "CPU";
}

class PlainRecording final : public Recording {
 public:
  explicit PlainRecording(std::function<void()> operations) : operations_(std::move(operations)) {}
  void replay() override { operations_(); }

 private:
  std::function<void()> operations_;
};

class ClockMarks final : public TimeMarks {
 public:
  explicit ClockMarks(std::size_t count) : moments_(count, Clock::now()) {}
  void mark(std::size_t i) override { moments_.at(i) = Clock::now(); }
  [[nodiscard]] double seconds(std::size_t from, std::size_t to) const override {
    return std::chrono::duration<double>(moments_.at(to) - moments_.at(from)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> moments_;
};

}  // namespace

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

CpuDevice::CpuDevice(const DeviceOptions& options)
    : Device(options), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  DP_ASSERT(options.threads >= 1, "{} threads", options.threads);
  // oneDNN and our loops use the OpenMP team of the calling thread. Set the team's size before any
  // primitive is created, because a primitive keeps the size that it was created with.
  omp_set_dynamic(0);
  omp_set_num_threads(options.threads);
}

std::string CpuDevice::description() const {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}, {} thread{}, {}, oneDNN {}.{}.{}", processor_name(), threads(),
                     threads() == 1 ? "" : "s", instruction_set().name, version->major,
                     version->minor, version->patch);
}

bool CpuDevice::supports(DataType type) const { return type == DataType::f32 || has_avx512_bf16(); }

std::size_t CpuDevice::vector_floats() const { return instruction_set().floats; }

std::size_t CpuDevice::channel_block(std::size_t channels) const {
  const std::size_t width = vector_floats();
  return width > 1 && channels % width == 0 ? width : channels;
}

void CpuDevice::reserve_scratch(std::size_t bytes) {
  scratch_bytes_ = std::max(scratch_bytes_, bytes);
}

std::byte* CpuDevice::scratch() {
  if (scratch_size_ < scratch_bytes_) {
    scratch_.reset();
    scratch_ = allocate(scratch_bytes_);
    scratch_size_ = scratch_bytes_;
  }
  return scratch_.get();
}

Device::Memory CpuDevice::allocate(std::size_t bytes) {
  const std::size_t size = std::max(bytes, kAlignment) + kAlignment - 1;
  const std::size_t rounded = size / kAlignment * kAlignment;
  // The operating system overcommits memory and kills the process later, so compare the size with
  // the free memory first.
  const bool fits = rounded < kLargeBytes || rounded < free_bytes();
  void* memory = fits ? std::aligned_alloc(kAlignment, rounded) : nullptr;
  if (memory == nullptr) {
    const FreeMemory free = free_host_memory();
    throw OutOfMemory(fmt::format(
        "out of memory: {} MiB more were requested, and {} leaves {} MiB; try a smaller "
        "batch or model",
        rounded >> 20, free.limit, free.bytes >> 20));
  }
  std::memset(memory, 0, rounded);
  return Memory(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
}

std::size_t CpuDevice::free_bytes() const { return free_host_memory().bytes; }

void CpuDevice::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void CpuDevice::fill_zero(void* at, std::size_t bytes) {
  if (bytes > 0) std::memset(at, 0, bytes);
}

std::unique_ptr<Recording> CpuDevice::record(std::function<void()> operations) {
  return std::make_unique<PlainRecording>(std::move(operations));
}

std::unique_ptr<TimeMarks> CpuDevice::make_time_marks(std::size_t count) {
  return std::make_unique<ClockMarks>(count);
}

}  // namespace dp::cpu
