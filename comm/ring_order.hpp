// The ring's messages: their headers and the one order in which a rank sends or receives them
// (ring.hpp says what they mean). Pure arithmetic; nothing here fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/ring.hpp"

namespace dp {

inline constexpr std::uint32_t kRingSegmentKind = 0x44500001u;
inline constexpr std::uint32_t kRingStartKind = 0x44500002u;
inline constexpr std::uint32_t kRingNotFinite = 0x100u;

struct RingHeader {
  std::uint32_t kind = 0;
  std::uint32_t step = 0;
  std::uint32_t bucket = 0;
  std::uint32_t number = 0;
};
static_assert(sizeof(RingHeader) == kRingHeaderBytes);

// One message's place: a segment of the chunk that a rank sends (or receives) on a hop.
struct RingPiece {
  std::size_t hop = 0;
  std::size_t segment = 0;
  std::size_t begin = 0;  // in the bucket
  std::size_t size = 0;
};

// Walks over a rank's messages in their fixed order; empty segments are no messages.
class RingCursor {
 public:
  // `first_chunk` is the chunk of hop 0; on hop h it is (first_chunk - h) mod P.
  RingCursor(const RingShape& shape, std::size_t window, std::size_t first_chunk)
      : shape_(shape), window_(window), first_chunk_(first_chunk) {}

  void rewind() {
    group_ = number_ = 0;
    piece_ = {};
    skip_empty();
  }
  [[nodiscard]] bool at_end() const { return group_ >= shape_.segments() || shape_.ranks < 2; }
  [[nodiscard]] const RingPiece& piece() const { return piece_; }
  [[nodiscard]] std::uint32_t number() const { return number_; }
  void advance() {
    step();
    ++number_;
    skip_empty();
  }

 private:
  void step() {
    if (++piece_.segment < std::min(group_ + window_, shape_.segments())) return;
    if (++piece_.hop == shape_.hops()) {
      piece_.hop = 0;
      group_ += window_;
    }
    piece_.segment = group_;
  }
  void skip_empty() {
    for (; !at_end(); step()) {
      const std::size_t p = shape_.ranks;
      const std::size_t chunk = (first_chunk_ + 2 * p - piece_.hop) % p;
      const std::size_t at = piece_.segment * shape_.segment;
      if (at < shape_.chunk_size(chunk)) {
        piece_.begin = shape_.chunk_begin(chunk) + at;
        piece_.size = std::min(shape_.segment, shape_.chunk_size(chunk) - at);
        return;
      }
    }
  }

  RingShape shape_;
  std::size_t window_, first_chunk_;
  std::size_t group_ = 0;  // its first segment
  RingPiece piece_;
  std::uint32_t number_ = 0;
};

}  // namespace dp
