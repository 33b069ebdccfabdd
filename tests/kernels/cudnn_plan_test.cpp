// Tests that the installed cuDNN can plan the networks' convolutions for GPUs that are only
// described (possible since 9.8). Every convolution needs a way that gives the same bits every
// time, in every precision and direction; otherwise training would fail at its first step on a GPU.
#include "kernels/cuda/cudnn_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "kernels/base/error.hpp"
#include "kernels/conv2d.hpp"

namespace dp::cuda {
namespace {

struct Gpu {
  const char* name;
  int version;  // compute capability, 900 is 9.0
  int multiprocessors;
  int shared_bytes;  // of a block, opted in
};
constexpr Gpu kH200 = {"NVIDIA H200", 900, 132, 232448};
constexpr Gpu kA100 = {"NVIDIA A100", 800, 108, 166912};

// cuDNN's own form of a device's properties.
std::string properties_of(const Gpu& gpu) {
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], )"
      R"("regsPerBlock": 65536, "multiProcessorCount": {}, "warpSize": 32, )"
      R"("maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": {}, )"
      R"("reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, )"
      R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "deviceVer": {}, )"
      R"("driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, )"
      R"("supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, )"
      R"("l2CacheSize": 62914560, "deviceName": "{}", "totalGlobalMem": 80000000000}})",
      gpu.multiprocessors, gpu.shared_bytes, gpu.version, gpu.name);
}

class CudnnPlans : public testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    if (const std::string why = Libraries::why_missing(); !why.empty()) GTEST_SKIP() << why;
    if (cudnn_api().get_version() < 90800) GTEST_SKIP() << "cuDNN before 9.8 plans on a GPU only";
    const std::string text = properties_of(GetParam());
    properties_ = Descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                    std::span<const char>(text));
    if (properties_.try_finalize() != CUDNN_STATUS_SUCCESS) {
      GTEST_SKIP() << "this cuDNN describes GPUs in another way: " << last_cudnn_message();
    }
  }

  [[nodiscard]] ConvPlanner plan(const ConvProblem& problem) const {
    return {{.handle = nullptr, .properties = properties_.get()}, problem};
  }

  Descriptor properties_;
};

ConvProblem make_problem(const Shape& x, std::size_t channels, Extent kernel, std::size_t stride) {
  ConvProblem p;
  p.x = x;
  p.kernel = kernel;
  p.stride = stride;
  p.padding = {kernel.h / 2, kernel.w / 2};
  p.y = conv2d_output(x, channels, kernel, stride, p.padding);
  return p;
}

// The shapes of ResNet-18, -20 and -50 in CIFAR form, and odd ones; channels as conv_pass.cpp pads
// them for bf16.
std::vector<ConvProblem> problems() {
  return {
      make_problem({128, 32, 32, 8}, 64, 3, 1),
      make_problem({128, 32, 32, 64}, 64, 3, 1),
      make_problem({128, 32, 32, 64}, 128, 3, 2),
      make_problem({128, 32, 32, 64}, 128, 1, 2),
      make_problem({128, 8, 8, 256}, 512, 3, 2),
      make_problem({128, 4, 4, 512}, 512, 3, 1),
      make_problem({128, 32, 32, 16}, 16, 3, 1),
      make_problem({128, 32, 32, 16}, 32, 3, 2),
      make_problem({128, 32, 32, 64}, 256, 1, 1),
      make_problem({128, 4, 4, 2048}, 512, 1, 1),
      make_problem({1, 7, 5, 24}, 40, 5, 2),
      make_problem({3, 1, 1, 16}, 8, 1, 1),
      make_problem({1024, 32, 32, 64}, 64, 3, 1),
      make_problem({64, 56, 56, 64}, 64, 7, 2),
      make_problem({16, 17, 17, 128}, 192, {1, 7}, 1),
      make_problem({16, 17, 17, 128}, 192, {7, 1}, 1),
  };
}

TEST_P(CudnnPlans, EveryConvolutionHasAWay) {
  for (ConvProblem p : problems()) {
    for (const auto direction :
         {ConvDirection::forward, ConvDirection::backward_data, ConvDirection::backward_weights}) {
      p.direction = direction;
      const auto ways = [&](DataType type, bool allows_tf32) {
        p.x_type = p.w_type = p.y_type = type;
        p.allows_tf32 = allows_tf32;
        const ConvPlanner planner = plan(p);
        std::vector<std::string> names;
        for (std::size_t i = 0; i < planner.count(); ++i) {
          const auto built = planner.build(i);
          if (!built) continue;
          EXPECT_EQ(built->name(), planner.name(i));
          EXPECT_LE(built->workspace_bytes(), ConvPlanner::kMostWorkspaceBytes);
          EXPECT_EQ(std::count(names.begin(), names.end(), built->name()), 0) << "named twice";
          names.push_back(built->name());
        }
        EXPECT_FALSE(names.empty()) << to_string(p) << ": " << planner.last_refusal();
        return names;
      };
      const auto fp32 = ways(DataType::f32, false), tf32 = ways(DataType::f32, true);
      static_cast<void>(ways(DataType::bf16, false));
      // Allowing TF32 only adds ways.
      EXPECT_GT(tf32.size(), fp32.size()) << to_string(p);
      for (const std::string& name : fp32) {
        EXPECT_EQ(std::count(tf32.begin(), tf32.end(), name), 1) << name << ", " << to_string(p);
      }
    }
  }
}

TEST_P(CudnnPlans, LargeBatchesInBf16HaveTensorCores) {
  ConvProblem p = make_problem({32767, 32, 32, 64}, 64, 3, 1);
  p.x_type = p.w_type = p.y_type = DataType::bf16;
  for (const auto direction :
       {ConvDirection::forward, ConvDirection::backward_data, ConvDirection::backward_weights}) {
    p.direction = direction;
    const ConvPlanner planner = plan(p);
    std::size_t built = 0;
    for (std::size_t i = 0; i < planner.count(); ++i) built += planner.build(i) != nullptr;
    // There are two or three slow engines.
    EXPECT_GE(built, 10u) << to_string(p);
  }
}

// Without measurements the first way that can be built is used.
TEST_P(CudnnPlans, InBf16TensorCoresComeFirst) {
  for (ConvProblem p : problems()) {
    p.x_type = p.w_type = p.y_type = DataType::bf16;
    for (const auto direction :
         {ConvDirection::forward, ConvDirection::backward_data, ConvDirection::backward_weights}) {
      p.direction = direction;
      const ConvPlanner planner = plan(p);
      std::size_t first = 0;
      while (first < planner.count() && !planner.build(first)) ++first;
      ASSERT_LT(first, planner.count()) << to_string(p);
      EXPECT_TRUE(planner.has_tensor_cores(first)) << to_string(p) << ": " << planner.name(first);
    }
  }
}

// conv_pass.hpp computes weight gradients in bf16 and copies them. This test fails if a future
// cuDNN makes that unnecessary.
TEST_P(CudnnPlans, NoneWritesFp32WeightGradientsFromBf16) {
  ConvProblem p = make_problem({128, 32, 32, 64}, 64, 3, 1);
  p.direction = ConvDirection::backward_weights;
  p.x_type = p.y_type = DataType::bf16;
  EXPECT_EQ(plan(p).count(), 0u);
}

// Planning the same problem again gives the same names in the same order, because the table of
// choices refers to them.
TEST_P(CudnnPlans, NamesAreStable) {
  ConvProblem p = make_problem({128, 32, 32, 64}, 64, 3, 1);
  p.x_type = p.w_type = p.y_type = DataType::bf16;
  const ConvPlanner first = plan(p), second = plan(p);
  ASSERT_EQ(first.count(), second.count());
  for (std::size_t i = 0; i < first.count(); ++i) EXPECT_EQ(first.name(i), second.name(i));
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans, testing::Values(kH200, kA100), [](const auto& one) {
  return fmt::format("sm_{}", one.param.version / 10);
});

}  // namespace
}  // namespace dp::cuda
