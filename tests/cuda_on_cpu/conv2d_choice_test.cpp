// The plan that a convolution chooses if the heuristics list bad ones first: one that breaks the
// device, one that finds no memory, one without tensor cores.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/error.hpp"
#include "kernels/conv2d.hpp"
#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/fake_engines.hpp"

namespace dp {
namespace {

constexpr cuda_on_cpu::Configuration kCrashes = {14, -1}, kTakesMuchMemory = {15, -1},
                                     kWithoutTensorCores = {1, 4};

class Conv2dOfEngines : public testing::Test {
 protected:
  ~Conv2dOfEngines() override {
    cuda_on_cpu::favourites().clear();
    cuda_on_cpu::set_device_fault(cudaSuccess);
    unsetenv("DP_CUDA_ON_CPU_MEMORY_MB");
  }
  // The choices of a small convolution, such as "forward engine 7 10=3, ...".
  static std::string choose(const cuda_on_cpu::Configuration& favourite, bool tunes,
                            DataType type = DataType::f32) {
    cuda_on_cpu::favourites() = {favourite};
    const auto device = make_device({.kind = DeviceKind::cuda, .tune = tunes});
    const TensorDesc desc = {{2, 4, 4, 16}, type, 16};
    const auto conv = make_conv2d(*device, {.x = desc, .y = desc});
    return conv->algorithms();
  }
};

TEST_F(Conv2dOfEngines, ABrokenDeviceIsNoSlowPlan) {
  try {
    choose(kCrashes, true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_STREQ(error.what(),
                 "the GPU failed while a convolution was measured (engine 14): an illegal memory "
                 "access was encountered (cudaErrorIllegalAddress)");
  }
}

TEST_F(Conv2dOfEngines, APlanThatFindsNoMemoryIsLeftOut) {
  setenv("DP_CUDA_ON_CPU_MEMORY_MB", "256", 1);
  EXPECT_EQ(choose(kTakesMuchMemory, true).find("engine 15"), std::string::npos);
}

TEST_F(Conv2dOfEngines, WithoutMeasurementsBf16TakesTensorCores) {
  const std::string fp32 = choose(kWithoutTensorCores, false);
  EXPECT_TRUE(fp32.starts_with("forward engine 1 ")) << fp32;
  const std::string bf16 = choose(kWithoutTensorCores, false, DataType::bf16);
  EXPECT_TRUE(bf16.starts_with("forward engine 7 ")) << bf16;
  EXPECT_EQ(bf16.find("engine 1 "), std::string::npos) << bf16;
}

}  // namespace
}  // namespace dp
