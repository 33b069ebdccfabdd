// Computes how large a part of each bucket each rank owns, for the topology "direct" on links of
// different rates.
//
// A rank r that owns the fraction c_r of a bucket sends its own values of the rest, 1 - c_r, to
// their owners, and the sum of its chunk to P - 1 others. It receives the same amount. Its link
// carries
//
//     1 + (P - 2) c_r
//
// times the bucket in each direction. Let B_r be the link's rate. The time until all links have
// finished is shortest if c_r = max(0, (T B_r - 1) / (P - 2)), with T chosen so that all c_r add up
// to 1. This solves the linear program of Hivemind's averaging/load_balancing.py, with one rate for
// both directions. A rank whose link is too slow owns nothing, and its link carries the bucket once
// instead of 2(P-1)/P times.
//
// Ranks with faster links could then send their own values with more bits, but they do not. In a
// run with "auto" and four links, one of them at a tenth of the rate of the others, the extra bits
// cost processor time and did not lower the loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

// The ranks' weights, from 0 to 1000, computed from the rates of their links. Empty if all ranks
// own the same amount: with fewer than three ranks, or if the rates differ by no more than the
// measurement's uncertainty.
[[nodiscard]] std::vector<std::uint32_t> owner_weights(std::span<const double> bytes_per_s);

// The bytes that the rank's link carries in each direction, as a multiple of the bucket: 2(P-1)/P
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
