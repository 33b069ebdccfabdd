// Measures the rate and latency of the network between the ranks at the start of a run, and
// computes the size of buckets from them.
//
// It measures under the conditions of an exchange: every rank sends to its right neighbour and
// receives from its left one, as on a ring. The result is not the wire's nominal rate, but the rate
// that the transport (usually TCP) reaches in the long run, without its own headers. On a long path
// that loses frames this may be a hundredth of the nominal rate. Links between ranks of one host
// are left out, unless all ranks are on one host.
//
//     latency   a few bytes go to the right neighbour and back, 20 times or for 0.3 s, but at least
//               4 times; the first trip opens the connection. The latency is half of the shortest
//               round trip.
//     rate      all ranks send a stream of bytes at the same time and wait until it has arrived.
//               Streams become longer until one takes at least 0.3 s and 8 round trips on the
//               slowest link. Streams of that length are then repeated, at least once, until the
//               uncertainty of the slowest link's rate is 5 % or less. The receiver notes the time
//               of each arrival. The first half of each stream is discarded, and the rest gives
//               rate and uncertainty (link_estimate.hpp). Nothing is acknowledged: an
//               acknowledgement would wait behind the data in its direction, and would slow down
//               the stream that it acknowledges.
//
// Time: the measurement takes about 1 s if round trips are short, 2 s at 1 Mbit/s, and 45 round
// trips if these are long. It stops after 8 s + 40 round trips if the rate does not become steady,
// for example because a long path loses frames or other programs use the link. The uncertainty then
// shows how far TCP's rate varies within seconds. If all ranks are on one host, there is no
// network: the fastest of three streams of 8 MiB counts.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "comm/topologies/buckets.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

struct LinkProbe {
  double bytes_per_s = 0.0;  // the slowest link's, while every rank sends and receives
  double latency_s = 0.0;    // one way, on the longest link
  // The uncertainty of bytes_per_s, as a fraction of bytes_per_s (link_estimate.hpp).
  double uncertainty = 1.0;
  double fastest_bytes_per_s = 0.0;  // the fastest link's in the same measurement

  // If two rates differ by less than this factor, the difference may be an error of the
  // measurement.
  static constexpr double kClearly = 1.25;
  [[nodiscard]] bool has_faster_links() const {
    return fastest_bytes_per_s > kClearly * bytes_per_s;
  }
  [[nodiscard]] bool is_reliable() const { return uncertainty <= 0.1; }
  // Whether the rates show which links are faster. Over a path that loses packets, equal links have
  // differed by a factor of 2.2.
  [[nodiscard]] bool can_tell_links_apart() const {
    constexpr double kFarApart = 4.0;
    return is_reliable() || fastest_bytes_per_s > kFarApart * bytes_per_s;
  }
};

// Collective; the result is the same on all ranks. With one rank there is nothing to measure, and
// rates and latency are 0. If own_bytes_per_s is not null, the function writes the rate of each
// rank's own link to this vector, by rank. It clears the vector if some ranks share a host, or if
// the rates do not show which links are faster. Two streams pass each link, and a neighbour's link
// may slow down one of these streams, so the faster stream gives the rate.
[[nodiscard]] LinkProbe probe_link(Communicator& communicator,
                                   std::vector<double>* own_bytes_per_s = nullptr);

// Collective. Measures as probe_link() does, but between pairs of ranks, all pairs at the same
// time. This takes half a second if round trips are short. The two ranks of a pair name each other
// as `partner`; a rank without a partner only waits. The result is for the direction from the
// partner to this rank; without a partner it is 0.
[[nodiscard]] LinkProbe probe_pair(Communicator& communicator, std::optional<int> partner);

// Collective, with the same `link` on all ranks. Returns the number of bytes that a link lets
// through at once after a pause. Links with a rate limiter (a token bucket) have such a burst. It
// is measured on one link while all others are idle, by comparing a message of about 8 ms with one
// twice as long (estimate_burst). The measurement takes a quarter of a second, and up to a second
// on slow links. The result is 0 if there is no burst, or if the burst is longer than the message.
// It is also 0 if nothing is measured: if all ranks are on one host, or if the link is slower than
// 1.2 Mbit/s.
[[nodiscard]] double probe_burst(Communicator& communicator, const LinkProbe& link);

// The bytes of the codec's payloads as a fraction of the bytes in fp32, for segments of the usual
// size. `tensors` is as in choose_bucket_bytes().
[[nodiscard]] double payload_share(const CodecSpec& codec, std::span<const TensorSlot> tensors);

// The size of buckets, in bytes of fp32: the smallest size for which a bucket's time on the wire is
// twice the time of waiting until messages have arrived and threads have woken up,
//
//     2(P-1)/P * size * share / rate = 2 * 2(P-1) * (latency + 0.5 ms),
//
// with share = payload_share(). The size is rounded up to 1/4, 1/2, 1, 2, 4 or 8 MiB, so that
// slightly different measurements give the same buckets. Smaller buckets leave earlier and end
// sooner after backward; larger ones wait less. `tensors` are the model's tensors: for codecs that
// factor matrices, the share depends on the matrices' shapes (1 without tensors). If the codec has
// planned bits or a wanted error (has_rate), the model is divided into at least six buckets, with
// two exceptions. If few bits are planned (has_few_bits), a bucket's payload is at least sixteen
// times as large as its headers. On a long path (5 ms one way or more), each rank's part of a
// bucket fills at least four packets: with more packets, one is lost more often, and training waits
// for it longer than for a round trip. If the link was not measured (0 bytes a second), the size is
// 10^6 bytes or, if larger, the size that few planned bits require.
[[nodiscard]] std::size_t choose_bucket_bytes(const LinkProbe& link, std::size_t ranks,
                                              const CodecSpec& codec,
                                              std::span<const TensorSlot> tensors = {});

// The number of segments of a bucket that may be on the wire at once (ReducerOptions::window; it
// does not change the sums). On a long path, the answer to a segment arrives late. The window
// therefore covers twice the bytes that the link carries in one round trip plus 1 ms. The window is
// at least 4, which is enough for short paths, and at most 32. `segment_bytes` counts bytes of
// fp32.
[[nodiscard]] std::size_t choose_window(const LinkProbe& link, const CodecSpec& codec,
                                        std::size_t segment_bytes);

}  // namespace dp
