// Common part of the formats with one scale per block and codes of a fixed width.
//
// Wire format of a segment of n floats in blocks of `block` (the last one may be shorter):
//     float32 scale[blocks]      little-endian; at least 0 and at most 2^126 / M, if codes stand
//                                for up to M times the scale
//     codes                      block after block: see code_layout.hpp
// If the largest magnitude of a block is below 2^-100, the block is sent as zeros (scale 0), so no
// division overflows and no product is denormal. A magnitude of 2^126 or more counts as not finite,
// so no decoded value overflows.
//
// The bytes are the same on every machine. The one division per block is correctly rounded, and all
// other operations are single IEEE operations, never contracted (-ffp-contract=off, --fmad=false).
// The maximum is taken over bit patterns, in which NaN is the largest, so the order of comparisons
// does not matter.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/hd.hpp"
#include "kernels/codecs/code_layout.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// Reads and writes the blocks' scales, whatever the codes are.
class BlockScales {
 public:
  // The bits of 2^126 / levels, the largest scale that an encoder writes. With this scale no
  // decoded value overflows. Negative scales and NaN have larger bits, so one comparison rejects
  // them, too.
  DP_HD static constexpr std::uint32_t largest_scale(int levels) {
    return std::bit_cast<std::uint32_t>(0x1p126f / static_cast<float>(levels));
  }

  static constexpr bool kIsLossless = false;
  static constexpr bool kNeedsBlockMaximum = true;
  static constexpr bool kDraws = false;
  static constexpr std::uint32_t kNonFiniteFrom = 0x7E800000u;  // 2^126
  static constexpr std::uint32_t kTiny = 0x0D800000u;           // 2^-100

  explicit BlockScales(const CodecSpec& spec) : block_(spec.block) {}

  DP_HD std::size_t code_start(std::size_t n) const {
    return (n + block_ - 1) / block_ * sizeof(float);
  }

 protected:
  DP_HD std::size_t block() const { return block_; }

  // Host: writes the scale of the block that begins at float `begin`.
  void write_scale(std::byte* payload, std::size_t begin, float scale) const {
    std::memcpy(payload + begin / block_ * sizeof scale, &scale, sizeof scale);
  }
  [[nodiscard]] std::uint32_t read_head(const std::byte* payload, std::size_t begin) const {
    std::uint32_t head = 0;
    std::memcpy(&head, payload + begin / block_ * sizeof head, sizeof head);
    return head;
  }

 private:
  std::size_t block_;
};

// Scales, and codes of kBits bits each. kNothing is the code that pads a block's last byte.
template <unsigned kBits, std::uint32_t kNothing = 0>
class ScaledBlocks : public BlockScales {
 public:
  static constexpr unsigned kCodeBits = kBits;
  static constexpr std::uint32_t kPadding = kNothing;

  using BlockScales::BlockScales;

  DP_HD std::size_t payload_bytes(std::size_t n) const {
    return code_start(n) + code_layout::bytes(n, kBits);
  }

 protected:
  // Host: the codes of the block that begins at float `begin` of a segment of n.
  template <class Bytes>
  [[nodiscard]] Bytes* codes_of(Bytes* payload, std::size_t begin, std::size_t n) const {
    return payload + code_start(n) + code_layout::bytes(begin, kBits);
  }
};

}  // namespace dp
