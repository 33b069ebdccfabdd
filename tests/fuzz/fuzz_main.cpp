// One target for libFuzzer: the one that DP_FUZZ_TARGET names when it is compiled.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto& target =
      *std::ranges::find(dp::fuzz::targets(), DP_FUZZ_TARGET, &dp::fuzz::Target::name);
  target.run({data, size});
  return 0;
}
