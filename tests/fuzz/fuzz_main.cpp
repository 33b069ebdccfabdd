// One target for libFuzzer: the one that DP_FUZZ_TARGET names when it is compiled. If the variable
// DP_FUZZ_SEEDS names a folder, the target's seeds are written there first.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/hdf5_trial.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

const dp::fuzz::Target& target() {
  static const auto& found =
      *std::ranges::find(dp::fuzz::targets(), DP_FUZZ_TARGET, &dp::fuzz::Target::name);
  return found;
}

}  // namespace

// A child for every HDF5 file copies the tables of this process's pages: without much freed memory
// that is kept it takes a tenth of the time. hdf5_trial.cpp asks whether memory is the stack's.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=2:detect_stack_use_after_return=0";
}

// HDF5 loses memory on many damaged files.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() {
  constexpr std::array<std::string_view, 3> kReadsHdf5 = {"run_log", "weights", "pack"};
  return std::ranges::count(kReadsHdf5, DP_FUZZ_TARGET) > 0 ? 1 : 0;
}

// Without it libFuzzer goes on after a report of UBSan.
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  GTEST_FLAG_SET(break_on_failure, true);
  dp::fuzz::prepare_trials();
  if (const char* folder = std::getenv("DP_FUZZ_SEEDS")) {
    int number = 0;
    std::vector<dp::fuzz::Bytes> seeds = target().seeds();
    if (target().findings != nullptr) {
      for (const dp::fuzz::Bytes& found : target().findings()) seeds.push_back(found);
    }
    for (const dp::fuzz::Bytes& seed : seeds) {
      std::ofstream(std::string(folder) + "/seed" + std::to_string(number++), std::ios::binary)
          .write(reinterpret_cast<const char*>(seed.data()),
                 static_cast<std::streamsize>(seed.size()));
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run({data, size});
  return 0;
}
