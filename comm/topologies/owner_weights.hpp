// How much of each bucket a rank owns, with the topology direct, if links carry different rates.
//
// With the share c_r of a bucket, rank r sends its own values of the rest, 1 - c_r, to their
// owners, and the sum of its chunk to P - 1 others; it receives as much. So its link carries
//
//     1 + (P - 2) c_r
//
// times the bucket in each direction, and the slowest link ends first if c_r = max(0, (T B_r - 1) /
// (P - 2)) with the T at which the shares add up to 1: the linear program of Hivemind's
// averaging/load_balancing.py, with one rate for both directions. A link that is too slow owns
// nothing and carries the bucket once instead of 2 (P - 1) / P times.
//
// Faster links then have room for more bits of their ranks' own values. Sending these was tried
// (auto, one of four links at a tenth): it cost processor time, and the loss was no lower.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

// Weights from 0 to 1000 by rank, from the rates of the ranks' links; empty if all own as much:
// with fewer than three ranks, and if rates differ by no more than a measurement does.
[[nodiscard]] std::vector<std::uint32_t> owner_weights(std::span<const double> bytes_per_s);

// By how many buckets' bytes each direction of the rank's link is used: 2 (P - 1) / P without
// weights.
[[nodiscard]] double owner_wire_factor(std::span<const std::uint32_t> weights, std::size_t ranks,
                                       std::size_t rank);

// "30 % 40 % 30 %"
[[nodiscard]] std::string owner_percentages(std::span<const std::uint32_t> weights);
// "300:400:300", or empty. parse throws Error(data) for text that the other has not written.
[[nodiscard]] std::string owner_weights_text(std::span<const std::uint32_t> weights);
[[nodiscard]] std::vector<std::uint32_t> parse_owner_weights(std::string_view text);

}  // namespace dp
