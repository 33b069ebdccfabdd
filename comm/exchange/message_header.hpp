// Wire format of a message: its bytes besides the payload.
//
//     header      16 bytes (MessageHeader)
//     rate note   8 bytes (RateNote); only in segments, and only with ExchangeSetup::rate
//     payload     written by the codec; a start notice has none
//     seal        4 bytes (comm/mpi/seal.hpp)
//
// All numbers are little-endian. A rank that starts a bucket sends a *start notice* to all others,
// so that a rank knows whether it waits for another rank or for the network. If segments are hardly
// longer than a notice, the first segment replaces the notice (ExchangePlan::Notices).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/mpi/seal.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

struct MessageHeader {
  // Kinds of messages. comm/mpi/prompt_gather.hpp defines one more kind, 0x44500003.
  static constexpr std::uint32_t kSegment = 0x44500001u, kStart = 0x44500002u;
  // Flags that are added to the kind. One means that some rank's input was not finite, the other
  // that some rank wishes to stop. A total has a flag if one of its partial sums had it, and all
  // ranks receive the same totals. Hence all ranks agree at the end of an exchange, without another
  // message.
  static constexpr std::uint32_t kNotFinite = 0x100u, kStopWished = 0x200u;

  std::uint32_t kind = 0;
  std::uint32_t step = 0;    // lower 32 bits
  std::uint32_t stream = 0;  // tags.hpp
  std::uint32_t number = 0;  // of a segment: number_of(); of a start notice: 0

  // Segments are numbered chunk after chunk.
  [[nodiscard]] static constexpr std::uint32_t number_of(std::uint32_t segment, bool is_total) {
    return segment * 2 + (is_total ? 1 : 0);
  }
  [[nodiscard]] bool has(std::uint32_t flag) const { return (kind & flag) != 0; }
  // Whether this has the expected kind, ignoring flags; `due` has no flags.
  [[nodiscard]] bool has_kind_of(const MessageHeader& due) const {
    return (kind & ~(kNotFinite | kStopWished)) == due.kind;
  }
  // Whether this is the expected header, ignoring flags.
  [[nodiscard]] bool is(const MessageHeader& due) const {
    return has_kind_of(due) && step == due.step && stream == due.stream && number == due.number;
  }
};

// The rate note in each message of a segment. It has the payload bytes of the segment's partial
// sums so far, and the ranks' combined reports (RateWord). The note of a partial sum counts the
// payload of this sum and the payloads that were added into it. The note of a total counts the
// payloads of all partial sums.
struct RateNote {
  static constexpr std::uint16_t kAlarm = 0x8000;

  std::uint32_t partial_bytes = 0;  // of the payloads of this segment's partial sums so far
  std::uint16_t partials = 0;       // bits 0-14: how many; bit 15: RateWord::has_alarm
  std::uint16_t word = 0xffff;      // RateWord::code
};

inline constexpr std::size_t kMessageHeaderBytes = sizeof(MessageHeader);
// Header and seal: every message has both.
inline constexpr std::size_t kMessageFrameBytes = kMessageHeaderBytes + kSealBytes;
static_assert(kMessageHeaderBytes == 16 && sizeof(RateNote) == 8 &&
              std::endian::native == std::endian::little);

// The bytes of one rank's start notices.
[[nodiscard]] inline std::uint64_t notice_bytes(std::size_t ranks) {
  return kMessageFrameBytes * (ranks - 1);
}

// The bytes of frames and payloads of a chunk's segments, each counted once. For codecs of fixed
// payload size.
[[nodiscard]] std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk,
                                             const Codec& codec);

}  // namespace dp
