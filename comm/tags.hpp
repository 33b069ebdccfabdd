// Who uses which MPI tags on the group's communicator, so that no two ever meet.
//
// An exchange sends in *streams*: in one, the messages from a rank to another arrive in the order
// in which they were sent. A stream has four tags: segments and start notices, in even and in odd
// exchanges (segment_exchange.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dp {

inline constexpr int kLargestTag = 32767;  // that MPI guarantees

inline constexpr int kClockTag = 0;  // clock_offset.hpp
inline constexpr int kProbeTag = 1;  // and the three after it; link_probe.hpp
inline constexpr int kFirstStreamTag = 8;

inline constexpr int kTagsOfAStream = 4;
inline constexpr std::size_t kMostStreams = (kLargestTag + 1 - kFirstStreamTag) / kTagsOfAStream;

// The tag of a stream's messages of one kind, in an exchange of one parity; both are 0 or 1.
[[nodiscard]] constexpr int stream_tag(std::uint32_t stream, std::uint32_t parity,
                                       std::uint32_t kind) {
  return kFirstStreamTag + static_cast<int>(stream) * kTagsOfAStream +
         static_cast<int>(parity * 2 + kind);
}

}  // namespace dp
