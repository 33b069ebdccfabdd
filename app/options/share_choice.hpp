// How the ranks divide a step's images (--shares).
//
//   even         every rank computes the same number of images
//   auto         faster machines get more images, by the times measured while training
//     :min=N     no rank gets fewer than N images in a step
//   A:B:C...     a weight for each rank: 3:1 gives rank 0 three quarters
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

struct ShareChoice {
  enum class Kind { even, automatic, weights };

  Kind kind = Kind::automatic;
  std::vector<std::uint64_t> weights = {};  // by rank, of Kind::weights
  std::size_t least = 0;       // images, of Kind::automatic; 0: a quarter of even shares, at most 8
  std::string given = "auto";  // the value as text

  static ShareChoice even() { return {.kind = Kind::even, .given = "even"}; }

  [[nodiscard]] bool is_auto() const { return kind == Kind::automatic; }
};

inline constexpr const char* kShareChoices =
    "even, auto, auto:min=N (N from 1 to 65536) or A:B:C... (a weight from 1 to 1000000 for each "
    "rank)";

// Throws Error(usage).
[[nodiscard]] ShareChoice parse_share_choice(std::string_view text);

}  // namespace dp
