// Helpers for tests of operations: tensors between guard bytes, whose values are set and read in
// NHWC order as doubles whatever their type and block; reproducible values; normalised errors;
// central differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/random.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/device.hpp"
#include "tests/support/test_device.hpp"

namespace dp::test {

using Doubles = std::vector<double>;

// Uniform in [-1, 1), rounded to a type, so that twin and reference read the same numbers.
inline Doubles random_values(std::size_t count, std::uint64_t key, DataType type = DataType::f32) {
  const CounterRng rng(20, RandomStream::test, key);
  Doubles values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(2.0 * rng.uniform(i) - 1.0);
    values[i] =
        static_cast<double>(type == DataType::f32 ? value : cpu::load(cpu::store<bf16>(value)));
  }
  return values;
}

// A tensor between guard bytes. Starts as NaN, which reveals values that an operation does not
// assign, or adds to.
class GuardedTensor {
 public:
  explicit GuardedTensor(const TensorDesc& desc) : desc_(desc), bytes_(allocate_shared(size())) {
    std::memset(bytes_.get(), kPattern, size());
    for (std::size_t i = 0; i < desc.shape.elements(); ++i) {
      set_memory(i, std::numeric_limits<double>::quiet_NaN());
    }
  }
  GuardedTensor(const TensorDesc& desc, const Doubles& nhwc) : GuardedTensor(desc) {
    EXPECT_EQ(nhwc.size(), desc.shape.elements());
    for (std::size_t i = 0; i < nhwc.size(); ++i) set_memory(memory_index(i), nhwc[i]);
  }
  // A plain array of floats.
  explicit GuardedTensor(std::size_t count) : GuardedTensor(TensorDesc::nhwc({count, 1, 1, 1})) {}
  explicit GuardedTensor(const Doubles& values)
      : GuardedTensor(TensorDesc::nhwc({values.size(), 1, 1, 1}), values) {}

  [[nodiscard]] TensorView view() { return {desc_, bytes_.get() + kGuard}; }
  [[nodiscard]] float* floats() { return view().as<float>(); }
  [[nodiscard]] std::span<float> span() { return {floats(), desc_.shape.elements()}; }

  // The values in NHWC order, after all enqueued operations have run. Also checks the guards.
  [[nodiscard]] Doubles values() {
    synchronize_devices();
    for (std::size_t i = 0; i < size(); ++i) {
      const bool is_guard = i < kGuard || i >= kGuard + desc_.bytes();
      if (is_guard && bytes_.get()[i] != std::byte{kPattern}) {
        ADD_FAILURE() << "wrote outside: byte " << static_cast<std::ptrdiff_t>(i - kGuard) << " of "
                      << desc_.bytes();
        break;
      }
    }
    Doubles result(desc_.shape.elements());
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t at = memory_index(i);
      result[i] = static_cast<double>(
          desc_.type == DataType::f32 ? view().as<float>()[at] : cpu::load(view().as<bf16>()[at]));
    }
    return result;
  }
  [[nodiscard]] std::vector<std::byte> raw() const {
    synchronize_devices();
    const std::byte* first = bytes_.get() + kGuard;
    return {first, first + desc_.bytes()};
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kPattern = 0xA5;

  [[nodiscard]] std::size_t size() const { return desc_.bytes() + 2 * kGuard; }
  [[nodiscard]] std::size_t memory_index(std::size_t nhwc) const {
    const Shape& s = desc_.shape;
    const std::size_t c = nhwc % s.c, pixel = nhwc / s.c % s.pixels();
    const std::size_t n = nhwc / (s.c * s.pixels()), b = desc_.channel_block;
    return ((n * (s.c / b) + c / b) * s.pixels() + pixel) * b + c % b;
  }
  void set_memory(std::size_t at, double value) {
    if (desc_.type == DataType::f32) {
      view().as<float>()[at] = static_cast<float>(value);
    } else {
      view().as<bf16>()[at] = cpu::store<bf16>(static_cast<float>(value));
    }
  }

  TensorDesc desc_;
  Device::Memory bytes_;  // guards around the values
};

// Largest difference relative to the expected values' root mean square; NaN if there is any.
inline double normalised_error(const Doubles& actual, const Doubles& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0, squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    worst = error <= worst ? worst : error;
    if (std::isnan(worst)) return worst;
    squares += expected[i] * expected[i];
  }
  const double scale = std::sqrt(squares / static_cast<double>(expected.size()));
  return scale > 0 ? worst / scale : worst;
}

// The gradient of loss() with respect to x by central differences.
//
// Step 1e-5: truncation is h^2 / 6 f''' = 2e-11 f''', rounding 1e-16 |f| / h = 1e-11 |f|. Losses
// here are sums of at most some hundred terms of order 1 and gradients of order 1, so the two
// gradients agree to about 1e-9; tests allow 1e-7. ReLU inputs within 1e-5 of their kink would
// break this; the fixed values have none there.
inline Doubles central_differences(Doubles& x, const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    x[i] = value + kStep;
    const double above = loss();
    x[i] = value - kStep;
    const double below = loss();
    x[i] = value;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}
constexpr double kGradientTolerance = 1e-7;

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A tuning table in which every choice of `table` (one per line) is `method`.
inline std::string with_method(const std::string& table, const std::string& method) {
  std::string changed;
  for (std::size_t at = 0; at < table.size();) {
    const std::size_t end = std::min(table.find('\n', at), table.size());
    const std::size_t sign = table.find(" = ", at);
    changed +=
        sign < end ? table.substr(at, sign - at) + " = " + method : table.substr(at, end - at);
    if (end < table.size()) changed += '\n';
    at = end + 1;
  }
  return changed;
}

// Why a case is skipped on a GPU, where activations are always NHWC.
inline constexpr const char* kCpuBlocks = "blocks of channels are the CPU's";

inline bool skips(const Device& device, DataType type) { return !device.supports(type); }

// A tensor and the number of threads that work on it.
struct Form {
  Shape shape;
  std::size_t block;
  DataType type;
  int threads;
};
inline void PrintTo(const Form& f, std::ostream* out) {
  *out << to_string(TensorDesc{f.shape, f.type, f.block}) << ", " << f.threads << " threads";
}

}  // namespace dp::test
