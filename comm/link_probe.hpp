// What the network between the ranks carries, measured at the start, and the size of buckets that
// follows from it.
#pragma once

#include <cstddef>

#include "comm/communicator.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

struct LinkProbe {
  double bytes_per_s = 0.0;  // of the slowest link, while every rank sends and receives
  double latency_s = 0.0;    // one way, of the slowest, on the ranks' own clocks
};

// Collective; the same on all ranks. Every rank sends to its right neighbour, as a ring does: a
// byte twenty times, then messages of growing size, each thrice, until the best of a size takes
// 20 ms. Takes some 0.3 s, on links below 10 Mbit/s longer. Nothing is to be measured with one
// rank: zeros.
[[nodiscard]] LinkProbe probe_link(Communicator& communicator);

// The size of buckets, in bytes of fp32: the least with which passing on a bucket takes twice as
// long on the wire as it waits for messages to come and threads to wake up,
//
//     2(P-1)/P * size * share / rate = 2 * 2(P-1) * (latency + 0.5 ms),
//
// where `share` is what the codec sends of fp32; as a power of two times 1 MiB, from 1/4 to 8, so
// that a measurement that is a little off gives the same buckets. Smaller buckets leave earlier and
// end sooner after backward; larger ones wait less.
[[nodiscard]] std::size_t choose_bucket_bytes(const LinkProbe& link, std::size_t ranks,
                                              const CodecSpec& codec);

}  // namespace dp
