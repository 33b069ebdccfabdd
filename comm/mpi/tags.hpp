// All MPI tags on a Communicator and their users, so that no two users share a tag.
//
// An exchange sends in *streams*. In a stream, the messages from one rank to another arrive in the
// order in which they were sent. A stream has four tags: one each for segments and start notices,
// in even and in odd exchanges (segment_exchange.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dp {

inline constexpr int kLargestTag = 32767;  // the largest that MPI guarantees

inline constexpr int kClockTag = 0;   // clock_offset.hpp
inline constexpr int kProbeTag = 1;   // this one and the next two; link_probe.hpp
inline constexpr int kBytesTag = 4;   // send_bytes.hpp
inline constexpr int kGatherTag = 5;  // prompt_gather.hpp
inline constexpr int kFirstStreamTag = 8;

inline constexpr int kTagsOfAStream = 4;
inline constexpr std::size_t kMostStreams = (kLargestTag + 1 - kFirstStreamTag) / kTagsOfAStream;

// The tag of a stream's messages. `parity` is 0 in even exchanges and 1 in odd ones. `kind` is 0
// for segments and 1 for start notices.
[[nodiscard]] constexpr int stream_tag(std::uint32_t stream, std::uint32_t parity,
                                       std::uint32_t kind) {
  return kFirstStreamTag + static_cast<int>(stream) * kTagsOfAStream +
         static_cast<int>(parity * 2 + kind);
}

}  // namespace dp
