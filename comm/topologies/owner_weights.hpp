// With the topology direct: the part of each bucket that a rank owns, if links have different
// rates.
//
// A rank r that owns the fraction c_r of a bucket sends its own values of the rest, 1 - c_r, to
// their owners, and the sum of its chunk to P - 1 others; it receives as much. Its link carries
//
//     1 + (P - 2) c_r
//
// times the bucket in each direction. With B_r the link's rate, the last link to finish is earliest
// if c_r = max(0, (T B_r - 1) / (P - 2)), with T such that all c_r add up to 1: the linear program
// of Hivemind's averaging/load_balancing.py, with one rate for both directions. A rank whose link
// is too slow owns nothing, and its link carries the bucket once instead of 2 (P - 1) / P times.
//
// Faster links then have room for more bits of their ranks' own values. The room is not used: with
// auto and one of four links at a tenth of the rate, the extra bits cost processor time, and the
// loss was no lower.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

// Weights from 0 to 1000 by rank, from the rates of the ranks' links. Empty if all ranks own the
// same amount: with fewer than three ranks, and if the rates differ by no more than the
// measurement's uncertainty.
[[nodiscard]] std::vector<std::uint32_t> owner_weights(std::span<const double> bytes_per_s);

// The bytes in each direction of the rank's link, as a multiple of the bucket: 2 (P - 1) / P
// without weights.
[[nodiscard]] double owner_wire_factor(std::span<const std::uint32_t> weights, std::size_t ranks,
                                       std::size_t rank);

// "30 % 40 % 30 %"
[[nodiscard]] std::string owner_percentages(std::span<const std::uint32_t> weights);
// "300:400:300", or empty. parse_owner_weights reads this form and throws Error(data) for any other
// text.
[[nodiscard]] std::string owner_weights_text(std::span<const std::uint32_t> weights);
[[nodiscard]] std::vector<std::uint32_t> parse_owner_weights(std::string_view text);

}  // namespace dp
