// Outline: measure_round_trips() gives latencies (and, with long messages, bursts); Streams gives
// rates. Both drive MPI requests in a loop around Pause, so that a rank sends and receives at the
// same time and its wait has a deadline. probe_link(), probe_pair() and probe_burst() combine them
// and make the result the same on all ranks by all_gather. The last part computes bucket size and
// window from a measurement, without communication.
#include "comm/network/link_probe.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "comm/exchange/message_header.hpp"
#include "comm/mpi/link_model.hpp"
#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/tags.hpp"
#include "comm/network/link_estimate.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// Bursts are measured only on links of at least this rate. On slower links the messages of
// probe_burst() would take more than a second.
constexpr double kLeastForBursts = 150e3;  // bytes per second

constexpr int kPingTag = kProbeTag, kPongTag = kProbeTag + 1, kDataTag = kProbeTag + 2;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double largest_of(Communicator& communicator, double mine) {
  return std::ranges::max(communicator.all_gather(mine));
}

// The neighbours with which this rank measures; kNobody for a neighbour on the same host, unless
// all ranks are on one host.
struct Neighbours {
  static constexpr int kNobody = -1;
  int left = kNobody, right = kNobody;

  explicit Neighbours(int partner) : left(partner), right(partner) {}
  explicit Neighbours(const Communicator& communicator) {
    const int size = communicator.size(), rank = communicator.rank();
    const auto& hosts = communicator.hosts();
    const bool is_one_host = communicator.local_size() == size;
    const auto unless_here = [&](int other) {
      const bool is_here = hosts[static_cast<std::size_t>(other)] == communicator.host();
      return is_here && !is_one_host ? kNobody : other;
    };
    left = unless_here((rank + size - 1) % size);
    right = unless_here((rank + 1) % size);
  }
};

// The pause between two polls ("looks") of a loop. While something moves, and for eager_s seconds
// after that, after_look() returns at once. Later calls sleep, answer pings and check the deadline.
class Pause {
 public:
  Pause(Communicator& communicator, double eager_s)
      : communicator_(communicator), deadline_(communicator.deadline()), eager_s_(eager_s) {}

  void after_look(bool has_moved) {
    if (has_moved) {
      deadline_.moved();
      moved_s_ = now_s();
      return;
    }
    if (now_s() - moved_s_ < eager_s_) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    communicator_.serve();
    deadline_.check(communicator_.whereabouts(),
                    [] { return std::string("a measurement of the network"); });
  }

 private:
  Communicator& communicator_;
  Deadline deadline_;
  double eager_s_, moved_s_ = now_s();
};

bool has_ended(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) {
  if (request == MPI_REQUEST_NULL) return false;
  int is_done = 0;
  DP_CHECK_MPI(MPI_Test(&request, &is_done, status));
  return is_done != 0;
}

// A message to the right neighbour, sent with a seal. The answer is one byte, which is not read.
struct Ping {
  std::size_t bytes = 1;
  double pause_s = 0.0;  // the link is idle for this time before each ping
  std::size_t most = 20, fewest = 4;
  double long_enough_s = 0.3;  // after this time no further trip begins
};

// Makes round trips to the right neighbour, and echoes the left neighbour's pings until the left
// neighbour has finished.
std::vector<double> measure_round_trips(Communicator& communicator, const Neighbours& neighbours,
                                        const Ping& what = {}) {
  constexpr double kEager_s = 2e-3;
  const MPI_Comm comm = communicator.handle();
  std::vector<double> round_trips;
  std::vector<std::byte> ping(what.bytes + kSealBytes), their_ping(ping.size());
  const int bytes = checked_cast<int>(ping.size());
  std::uint8_t pong = 0, my_pong = 0;
  MPI_Request ping_sent = MPI_REQUEST_NULL, pong_came = MPI_REQUEST_NULL;
  MPI_Request ping_came = MPI_REQUEST_NULL, pong_sent = MPI_REQUEST_NULL;
  bool pings = neighbours.right != Neighbours::kNobody;
  bool echoes = neighbours.left != Neighbours::kNobody;
  const auto listen = [&] {
    DP_CHECK_MPI(
        MPI_Irecv(their_ping.data(), bytes, MPI_BYTE, neighbours.left, kPingTag, comm, &ping_came));
  };
  const auto begin_s = now_s();
  double sent_s = begin_s, next_s = begin_s + what.pause_s;
  bool is_pausing = pings;
  // The first byte is 1 in the last ping and 0 in all other pings.
  const auto send = [&] {
    const std::size_t trips = round_trips.size() + 1;
    const bool is_long = trips >= what.fewest && now_s() - begin_s > what.long_enough_s;
    ping[0] = std::byte{trips >= what.most || is_long};
    seal(ping);
    sent_s = now_s();
    DP_CHECK_MPI(MPI_Irecv(&pong, 1, MPI_BYTE, neighbours.right, kPongTag, comm, &pong_came));
    DP_CHECK_MPI(
        MPI_Isend(ping.data(), bytes, MPI_BYTE, neighbours.right, kPingTag, comm, &ping_sent));
  };
  if (echoes) listen();
  Pause pause(communicator, kEager_s);
  while (pings || echoes || ping_sent != MPI_REQUEST_NULL || pong_sent != MPI_REQUEST_NULL) {
    bool has_moved = has_ended(ping_sent) | has_ended(pong_sent);
    if (is_pausing && now_s() >= next_s) {
      is_pausing = false;
      has_moved = true;
      send();
    }
    if (!is_pausing && ping_sent == MPI_REQUEST_NULL && has_ended(pong_came)) {
      next_s = now_s() + what.pause_s;
      round_trips.push_back(now_s() - sent_s);
      has_moved = true;
      is_pausing = pings = ping[0] == std::byte{0};
    }
    if (pong_sent == MPI_REQUEST_NULL && has_ended(ping_came)) {
      DP_CHECK_MPI(MPI_Isend(&my_pong, 1, MPI_BYTE, neighbours.left, kPongTag, comm, &pong_sent));
      has_moved = true;
      if (!is_intact(their_ping)) {
        communicator.throw_damaged("a measurement of the network", neighbours.left);
      }
      echoes = their_ping[0] == std::byte{0};
      if (echoes) listen();
    }
    pause.after_look(has_moved);
  }
  return round_trips;
}

// Streams of messages to the right neighbour and from the left one. Their content is not read.
class Streams {
 public:
  // The least duration of a stream, and the time limit after which no further stream begins:
  // longest_s seconds plus most_trips round trips.
  struct Limits {
    double long_s = 0.3, longest_s = 8.0, most_trips = 40.0;
  };

  Streams(Communicator& communicator, const Neighbours& neighbours)
      : communicator_(communicator),
        neighbours_(neighbours),
        sends_(neighbours.right == Neighbours::kNobody ? 0 : kSlots, MPI_REQUEST_NULL),
        receives_(neighbours.left == Neighbours::kNobody ? 0 : kSlots, MPI_REQUEST_NULL),
        outgoing_(sends_.empty() ? 0 : kMostMessage),
        incoming_(receives_.size() * kMostMessage) {}

  // The rate and uncertainty of the slowest link, the same on all ranks.
  RateEstimate run(double round_trip_s, const Limits& limits) {
    const double long_s = std::max(limits.long_s, kTrips * round_trip_s);
    const double begin_s = now_s();
    std::uint64_t bytes = kFirstStream;
    std::vector<WindowRates> mine;
    for (;;) {
      const double stream_s = stream(bytes);
      if (stream_s < long_s) {
        const double times = 1.25 * long_s / std::max(stream_s, 1e-6);
        bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) *
                                           std::clamp(times, kLeastGrowth, kMostGrowth));
        continue;
      }
      mine.push_back(window_rates(arrivals_));
      const RateEstimate slowest = slowest_of_all(mine);
      const bool is_certain = mine.size() >= kFewestStreams && slowest.uncertainty <= kEnough;
      const bool is_late = now_s() - begin_s > limits.longest_s + limits.most_trips * round_trip_s;
      if (largest_of_all(is_certain || is_late ? 1.0 : 0.0) > 0.0) {
        own_ = receives_.empty() ? RateEstimate{} : estimate_rate(mine);
        return slowest;
      }
    }
  }

  // After run(): the estimate for the link on which this rank received.
  [[nodiscard]] const RateEstimate& own() const { return own_; }

  // Replaces run() if all ranks are on one host. Other work on the processors can only slow down
  // these streams, so the fastest of a few streams counts.
  RateEstimate run_in_memory() {
    RateEstimate best;
    for (std::size_t i = 0; i < kStreamsInMemory; ++i) {
      stream(kStreamInMemory);
      const RateEstimate now = slowest_of_all({{window_rates(arrivals_)}});
      if (now.bytes_per_s > best.bytes_per_s) best = now;
    }
    return best;
  }

 private:
  static constexpr std::size_t kSlots = 32;
  static constexpr std::size_t kLeastMessage = 4096, kMostMessage = std::size_t{1} << 18;
  static constexpr std::uint64_t kFirstStream = 32 * kLeastMessage, kMessages = 128;
  static constexpr double kLeastGrowth = 1.5, kMostGrowth = 8.0;
  static constexpr double kTrips = 8.0;
  static constexpr std::size_t kFewestStreams = 2, kStreamsInMemory = 3;
  static constexpr std::uint64_t kStreamInMemory = 8u << 20;
  static constexpr double kEnough = 0.05;

  double largest_of_all(double mine) { return largest_of(communicator_, mine); }
  RateEstimate slowest_of_all(const std::vector<WindowRates>& streams) {
    const RateEstimate mine = receives_.empty()
                                  ? RateEstimate{std::numeric_limits<double>::max(), 0.0}
                                  : estimate_rate(streams);
    const std::vector<RateEstimate> all = communicator_.all_gather(mine);
    return *std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.bytes_per_s < b.bytes_per_s;
    });
  }

  // Sends this many bytes to the right, receives as many from the left, and notes the arrivals in
  // arrivals_. Returns the time on the slowest link, the same number on all ranks.
  double stream(std::uint64_t bytes) {
    const auto message = std::clamp<std::size_t>(bytes / kMessages, kLeastMessage, kMostMessage);
    const std::uint64_t messages = bytes / message;
    std::uint64_t sent = 0, posted = 0, received = 0;
    arrivals_.clear();
    for (; posted < std::min<std::uint64_t>(messages, receives_.size()); ++posted) {
      post(posted, message);
    }
    communicator_.barrier();  // so that the links of all ranks are busy together
    const double begin_s = now_s();
    Pause pause(communicator_, 0.0);
    const std::uint64_t to_send = sends_.empty() ? 0 : messages;
    const std::uint64_t to_receive = receives_.empty() ? 0 : messages;
    while (sent < to_send || received < to_receive) {
      bool has_moved = false;
      for (; sent < to_send; ++sent, has_moved = true) {
        MPI_Request& request = sends_[sent % kSlots];
        if (request != MPI_REQUEST_NULL && !has_ended(request)) break;
        DP_CHECK_MPI(MPI_Isend(outgoing_.data(), static_cast<int>(message), MPI_BYTE,
                               neighbours_.right, kDataTag, communicator_.handle(), &request));
      }
      for (; received < to_receive && has_ended(receives_[received % kSlots]); has_moved = true) {
        arrivals_.push_back({now_s(), ++received * message});
        if (posted < messages) post(posted++, message);
      }
      pause.after_look(has_moved);
    }
    const double mine_s = now_s() - begin_s;
    for (MPI_Request& request : sends_) communicator_.wait(request, "a measurement of the network");
    return largest_of_all(mine_s);
  }
  void post(std::uint64_t index, std::size_t message) {
    const std::size_t slot = index % kSlots;
    DP_CHECK_MPI(MPI_Irecv(incoming_.data() + slot * kMostMessage, static_cast<int>(message),
                           MPI_BYTE, neighbours_.left, kDataTag, communicator_.handle(),
                           &receives_[slot]));
  }

  Communicator& communicator_;
  Neighbours neighbours_;
  std::vector<MPI_Request> sends_, receives_;
  std::vector<std::byte> outgoing_, incoming_;
  std::vector<Arrival> arrivals_;  // of the last stream
  RateEstimate own_;
};

}  // namespace

double payload_share(const CodecSpec& spec, std::span<const TensorSlot> tensors) {
  if (!find_codec(spec.name)->is_exchange) {
    constexpr std::size_t kSegment = std::size_t{1} << 16;
    return static_cast<double>(make_codec(spec)->expected_payload_bytes(kSegment)) /
           (kSegment * sizeof(float));
  }
  // A codec with its own kind of exchange (powersgd) sends sums in fp32. The result is the number
  // of floats in these sums divided by the number of floats in the tensors.
  std::vector<TensorSlot> compressed;
  std::size_t floats = 0, sent = 0;
  for (const TensorSlot& tensor : tensors) {
    if (tensor.is_1d || tensor.codec) continue;
    compressed.push_back(tensor);
    floats += tensor.elements();
  }
  if (floats == 0) return 1.0;
  for (const std::size_t sum : exchange_kind(spec).sums(spec, floats, compressed)) sent += sum;
  return static_cast<double>(sent) / static_cast<double>(floats);
}

LinkProbe probe_pair(Communicator& communicator, std::optional<int> partner) {
  const Neighbours neighbours(partner.value_or(Neighbours::kNobody));
  const double mine_s = estimate_latency(measure_round_trips(communicator, neighbours));
  const std::vector<double> all_s = communicator.all_gather(mine_s);
  Streams streams(communicator, neighbours);
  static_cast<void>(streams.run(2.0 * *std::max_element(all_s.begin(), all_s.end()),
                                {.long_s = 0.15, .longest_s = 0.3, .most_trips = 16.0}));
  if (!partner) return {};
  return {.bytes_per_s = streams.own().bytes_per_s,
          .latency_s = mine_s,
          .uncertainty = streams.own().uncertainty};
}

LinkProbe probe_link(Communicator& communicator, std::vector<double>* own_bytes_per_s) {
  if (own_bytes_per_s != nullptr) own_bytes_per_s->clear();
  if (communicator.size() == 1) return {};
  const Neighbours neighbours(communicator);
  const double mine_s = estimate_latency(measure_round_trips(communicator, neighbours));
  const std::vector<double> all_s = communicator.all_gather(mine_s);
  const double latency_s = *std::max_element(all_s.begin(), all_s.end());
  Streams streams(communicator, neighbours);
  const bool is_one_host = communicator.local_size() == communicator.size();
  const RateEstimate rate =
      is_one_host ? streams.run_in_memory() : streams.run(2.0 * latency_s, {});
  const std::vector<double> rates = communicator.all_gather(streams.own().bytes_per_s);
  const bool has_own_host = communicator.local_size() == 1;
  const bool is_shared = largest_of(communicator, has_own_host ? 0.0 : 1.0) > 0.0;
  const LinkProbe found = {
      .bytes_per_s = rate.bytes_per_s,
      .latency_s = latency_s,
      .uncertainty = rate.uncertainty,
      .fastest_bytes_per_s = std::max(rate.bytes_per_s, std::ranges::max(rates))};
  if (own_bytes_per_s == nullptr || is_shared || !found.can_tell_links_apart()) return found;
  for (std::size_t r = 0; r < rates.size(); ++r) {
    own_bytes_per_s->push_back(std::max(rates[r], rates[(r + 1) % rates.size()]));
  }
  return found;
}

double probe_burst(Communicator& communicator, const LinkProbe& link) {
  // Messages of this length are longer than most bursts. A message of twice kMost_bytes still
  // leaves in one piece (mpi_runtime.hpp: 512 KiB).
  constexpr double kPing_s = 8e-3, kLeast_bytes = 16e3, kMost_bytes = 256e3;
  // Longer than most links need to refill their token bucket: the lab's links need 1.25 to 3.2 ms.
  constexpr double kRefill_s = 10e-3;
  // Only the first pair of neighbours with a network between them measures. All other links are
  // idle.
  const auto& hosts = communicator.hosts();
  const auto is_network_behind = [&](int rank) {
    return hosts[static_cast<std::size_t>(rank)] != hosts[static_cast<std::size_t>(rank) + 1];
  };
  int first = 0;
  while (first + 1 < communicator.size() && !is_network_behind(first)) ++first;
  if (first + 1 == communicator.size() || link.bytes_per_s < kLeastForBursts) return 0.0;
  Neighbours pair(Neighbours::kNobody);
  if (communicator.rank() == first) pair.right = first + 1;
  if (communicator.rank() == first + 1) pair.left = first;
  const auto shortest_s = [&](double bytes) {
    const std::vector<double> trips = measure_round_trips(communicator, pair,
                                                          {.bytes = static_cast<std::size_t>(bytes),
                                                           .pause_s = kRefill_s,
                                                           .most = 4,
                                                           .fewest = 3,
                                                           .long_enough_s = 0.1});
    return trips.empty() ? 0.0 : std::ranges::min(trips);
  };
  const double bytes = std::clamp(kPing_s * link.bytes_per_s, kLeast_bytes, kMost_bytes);
  BurstTrips trips{.bytes = bytes};
  trips.none_s = shortest_s(1.0);
  trips.once_s = shortest_s(bytes);
  trips.twice_s = shortest_s(2 * bytes);
  const double burst = estimate_burst(trips, link.bytes_per_s);
  return communicator.all_gather(burst)[static_cast<std::size_t>(first)];
}

namespace {

// If few bits are planned, returns the bucket size, in bytes of fp32, for which the payload is
// kTimesTheFrames times as large as the headers around it. Returns 0 for all other codecs.
std::size_t least_brief_bytes(const CodecSpec& codec, std::size_t ranks) {
  if (!has_few_bits(codec)) return 0;
  constexpr double kTimesTheFrames = 16.0, kBitsAByte = 8.0;
  constexpr double kFrame = LinkModel::wire_bytes(kMessageFrameBytes + sizeof(RateNote), 1.0);
  const double values = kTimesTheFrames * kFrame * static_cast<double>(ranks) * kBitsAByte /
                        codec.settings.at("bits");
  return static_cast<std::size_t>(values) * sizeof(float);
}

// The bucket size, in bytes of fp32, for which each rank's part fills kPackets packets on a long
// path. Returns 0 on a short path.
std::size_t least_bytes_over(const LinkProbe& link, std::size_t ranks, const CodecSpec& codec) {
  constexpr double kLong_s = 5e-3, kPackets = 4.0, kPacketBytes = 1448.0, kBitsOfFp32 = 32.0;
  if (link.latency_s < kLong_s) return 0;
  const auto bits = codec.settings.find("bits");
  const bool has_bits = bits != codec.settings.end() && bits->second > 0.0;
  const double share = has_bits ? bits->second / kBitsOfFp32 : payload_share(codec, {});
  return static_cast<std::size_t>(kPackets * kPacketBytes * static_cast<double>(ranks) / share);
}

}  // namespace

std::size_t choose_bucket_bytes(const LinkProbe& link, std::size_t ranks, const CodecSpec& codec,
                                std::span<const TensorSlot> tensors) {
  constexpr double kWakeUp_s = 0.5e-3, kTimesTheWait = 2.0;
  constexpr double kMiB = 1 << 20;
  const std::size_t least_brief = least_brief_bytes(codec, ranks);
  if (link.bytes_per_s == 0.0) return std::max<std::size_t>(1'000'000, least_brief);
  const double bytes = kTimesTheWait * static_cast<double>(ranks) * (link.latency_s + kWakeUp_s) *
                       link.bytes_per_s / payload_share(codec, tensors);
  const double power = std::ceil(std::log2(std::max(bytes, 1.0) / kMiB));
  const auto chosen = static_cast<std::size_t>(kMiB * std::exp2(std::clamp(power, -2.0, 3.0)));
  if (!has_rate(codec)) return chosen;
  // At few bits a value, this size may exceed the whole model, and a single bucket would be ready
  // only when backward ends. With kFewest buckets or more, most of the exchange hides behind
  // backward.
  constexpr std::size_t kFewest = 6, kLeast = 256u << 10;
  std::size_t all = 0;
  for (const TensorSlot& tensor : tensors) all += tensor.elements() * sizeof(float);
  const std::size_t usual =
      all == 0 ? chosen : std::min(chosen, std::max(std::bit_floor(all / kFewest), kLeast));
  return std::max({usual, least_brief, least_bytes_over(link, ranks, codec)});
}

std::size_t choose_window(const LinkProbe& link, const CodecSpec& codec,
                          std::size_t segment_bytes) {
  constexpr double kWakeUp_s = 1e-3, kTimesTheWay = 2.0, kLeast = 4.0, kMost = 32.0;
  const double under_way = kTimesTheWay * link.bytes_per_s * (2.0 * link.latency_s + kWakeUp_s);
  const double segment = static_cast<double>(segment_bytes) * payload_share(codec, {});
  return static_cast<std::size_t>(std::clamp(std::ceil(under_way / segment), kLeast, kMost));
}

}  // namespace dp
