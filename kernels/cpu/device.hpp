// The CPU as a device: an OpenMP thread team, a oneDNN engine and stream, one scratch buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "kernels/device.hpp"

namespace dp::cpu {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] bool supports(DataType type) const override;
  [[nodiscard]] std::size_t channel_block(std::size_t channels) const override;
  void reserve_scratch(std::size_t bytes) override;
  [[nodiscard]] std::byte* scratch() override;
  [[nodiscard]] Memory allocate(std::size_t bytes) override;
  [[nodiscard]] Memory allocate_host(std::size_t bytes) override { return allocate(bytes); }
  [[nodiscard]] std::size_t free_bytes() const override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override { upload(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { upload(to, from, bytes); }
  void fill_zero(void* at, std::size_t bytes) override;
  void synchronize() override {}
  [[nodiscard]] std::unique_ptr<Recording> record(std::function<void()> operations) override;
  [[nodiscard]] std::unique_ptr<TimeMarks> make_time_marks(std::size_t count) override;

  // The channel block of oneDNN's kernels, in floats: 16 with AVX-512, 8 with AVX2. 1 if the
  // processor has neither; activations are then NHWC.
  [[nodiscard]] std::size_t vector_floats() const;
  [[nodiscard]] const dnnl::engine& engine() const { return engine_; }
  [[nodiscard]] dnnl::stream& stream() { return stream_; }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  Memory scratch_;
  std::size_t scratch_bytes_ = 0;  // reserved; scratch_ grows to it on its next use
  std::size_t scratch_size_ = 0;
};

}  // namespace dp::cpu
