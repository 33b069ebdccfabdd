// Compares every one of our roundings to bf16 with NVIDIA's toolkit on the host (cuda_bf16.h): all
// upper halves of a float, combined with the lower halves around which rounding changes. With
// DP_ALL_FLOATS=1 in the environment, all floats (half a minute).
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <vector>

#include "kernels/codecs/bf16.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cuda/bf16.cuh"
#include "tests/support/test_device.hpp"

#ifdef DP_HAVE_CUDA
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pack.hpp"
#include "kernels/cuda/twins.hpp"
#endif

namespace dp {
namespace {

constexpr std::uint32_t kUppers = 1u << 16;
constexpr std::array<std::uint32_t, 16> kLowers = {0x0000, 0x0001, 0x0002, 0x3FFF, 0x4000, 0x5A5A,
                                                   0x7FFE, 0x7FFF, 0x8000, 0x8001, 0x8002, 0xA5A5,
                                                   0xC000, 0xC001, 0xFFFE, 0xFFFF};

std::uint16_t toolkits(std::uint32_t bits) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(std::bit_cast<float>(bits)));
}
bool is_nan(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }
bool is_bf16_nan(std::uint16_t bits) { return (bits & 0x7FFFu) > 0x7F80u; }

// Whether all our roundings of a float are right. A NaN must stay a NaN; which one depends on the
// rounding.
bool are_right(std::uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const std::uint16_t right = toolkits(bits);
  const bool of_kernels = cuda::from_float<bf16>(value).bits == right;
  const std::uint16_t cpus = cpu::store<bf16>(value).bits;
  const bool of_cpu = is_nan(bits) ? is_bf16_nan(cpus) : cpus == right;
  // The codec takes finite values only and clamps values that would become infinite.
  const bool is_clamped = (right & 0x7FFFu) == 0x7F80u;
  const std::uint16_t wanted = is_clamped ? static_cast<std::uint16_t>(right - 1) : right;
  const bool is_codecs = (bits & 0x7FFFFFFFu) < 0x7F800000u;
  return of_kernels && of_cpu && (!is_codecs || bfloat16::from_float(value) == wanted);
}

TEST(Bf16, RoundsAsTheToolkitDoes) {
  std::size_t wrong = 0;
  std::uint32_t example = 0;
  const auto look = [&](std::uint32_t bits) {
    if (are_right(bits)) return;
    example = wrong++ == 0 ? bits : example;
  };
  const char* all = std::getenv("DP_ALL_FLOATS");
  for (std::uint32_t upper = 0; upper < kUppers; ++upper) {
    if (all != nullptr && *all == '1') {
      for (std::uint32_t lower = 0; lower < kUppers; ++lower) look(upper << 16 | lower);
    } else {
      for (const std::uint32_t lower : kLowers) look(upper << 16 | lower);
    }
  }
  EXPECT_EQ(wrong, 0u) << "the first one has the bits " << std::hex << example;
}

TEST(Bf16, IsReadAsTheToolkitReadsIt) {
  for (std::uint32_t half = 0; half < kUppers; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const auto want = std::bit_cast<std::uint32_t>(__bfloat162float(__ushort_as_bfloat16(bits)));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(cuda::to_float(bf16{bits})), want) << half;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(cpu::load(bf16{bits})), want) << half;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(bfloat16::to_float(bits)), want) << half;
  }
}

#ifdef DP_HAVE_CUDA
// A GPU has its own instructions for it: one for a single value, and one for two.
TEST(Bf16, ADeviceRoundsAsItsToolkitDoesOnTheHost) {
  if (!test::on_gpu()) GTEST_SKIP() << "about GPUs";
  const auto device = test::make_test_device({.tune = false});
  for (const std::size_t columns : {std::size_t{8}, std::size_t{1}}) {
    std::vector<float> values;
    for (std::uint32_t upper = 0; upper < kUppers; ++upper) {
      for (const std::uint32_t lower : kLowers) {
        values.push_back(std::bit_cast<float>(upper << 16 | lower));
      }
    }
    const Device::Memory from = device->allocate(values.size() * sizeof(float)),
                         to = device->allocate(values.size() * sizeof(bf16));
    device->upload(from.get(), values.data(), values.size() * sizeof(float));
    const std::size_t rows = values.size() / columns;
    cuda::repack(cuda::as_cuda(*device).stream(), from.get(), {rows, columns, DataType::f32},
                 to.get(), {rows, columns, DataType::bf16});
    std::vector<std::uint16_t> rounded(values.size());
    device->download(rounded.data(), to.get(), rounded.size() * sizeof(bf16));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += rounded[i] != toolkits(std::bit_cast<std::uint32_t>(values[i]));
    }
    EXPECT_EQ(wrong, 0u) << columns << " columns";
  }
}
#endif

}  // namespace
}  // namespace dp
