// What reads bytes that others have made, as functions of these bytes: libFuzzer calls them
// (fuzz_main.cpp), and fuzz_test.cpp with a bounded number of damaged seeds.
//
// A target throws nothing. Bad bytes must end in dp::Error, which it catches; a crash, a hang and
// memory beyond what the bytes justify are faults.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dp::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Target {
  std::string_view name;
  void (*run)(std::span<const std::uint8_t> bytes);
  std::vector<Bytes> (*seeds)();
};

// image, shard, codec_spec, config
[[nodiscard]] std::span<const Target> targets();

}  // namespace dp::fuzz
