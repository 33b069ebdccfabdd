#include "comm/link_probe.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "comm/check.hpp"
#include "comm/link_estimate.hpp"
#include "comm/powersgd.hpp"
#include "comm/tags.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

constexpr int kPingTag = kProbeTag, kPongTag = kProbeTag + 1, kDataTag = kProbeTag + 2,
              kAcknowledgeTag = kProbeTag + 3;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The neighbours with which this rank measures; kNobody if there is no network between them.
struct Neighbours {
  static constexpr int kNobody = -1;
  int left = kNobody, right = kNobody;

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

// A wait that does work in between. While something moves, and for a while after that, it looks
// again at once; then it sleeps between looks.
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

// Makes round trips to the right neighbour, and echoes for the left one until that has finished.
std::vector<double> measure_round_trips(Communicator& communicator, const Neighbours& neighbours) {
  constexpr std::size_t kMost = 20, kFewest = 4;
  constexpr double kLongEnough_s = 0.3, kEager_s = 2e-3;
  const MPI_Comm comm = communicator.handle();
  std::vector<double> round_trips;
  std::uint8_t ping = 0, pong = 0, their_ping = 0, my_pong = 0;
  MPI_Request ping_sent = MPI_REQUEST_NULL, pong_came = MPI_REQUEST_NULL;
  MPI_Request ping_came = MPI_REQUEST_NULL, pong_sent = MPI_REQUEST_NULL;
  bool pings = neighbours.right != Neighbours::kNobody;
  bool echoes = neighbours.left != Neighbours::kNobody;
  const auto listen = [&] {
    DP_CHECK_MPI(MPI_Irecv(&their_ping, 1, MPI_BYTE, neighbours.left, kPingTag, comm, &ping_came));
  };
  const auto begin_s = now_s();
  double sent_s = begin_s;
  // A ping says whether it is the last.
  const auto send = [&] {
    const std::size_t trips = round_trips.size() + 1;
    const bool is_long = trips >= kFewest && now_s() - begin_s > kLongEnough_s;
    ping = trips >= kMost || is_long ? 1 : 0;
    sent_s = now_s();
    DP_CHECK_MPI(MPI_Irecv(&pong, 1, MPI_BYTE, neighbours.right, kPongTag, comm, &pong_came));
    DP_CHECK_MPI(MPI_Isend(&ping, 1, MPI_BYTE, neighbours.right, kPingTag, comm, &ping_sent));
  };
  if (echoes) listen();
  if (pings) send();
  Pause pause(communicator, kEager_s);
  while (pings || echoes || ping_sent != MPI_REQUEST_NULL || pong_sent != MPI_REQUEST_NULL) {
    bool has_moved = has_ended(ping_sent) | has_ended(pong_sent);
    if (ping_sent == MPI_REQUEST_NULL && has_ended(pong_came)) {
      round_trips.push_back(now_s() - sent_s);
      has_moved = true;
      pings = ping == 0;
      if (pings) send();
    }
    if (pong_sent == MPI_REQUEST_NULL && has_ended(ping_came)) {
      DP_CHECK_MPI(MPI_Isend(&my_pong, 1, MPI_BYTE, neighbours.left, kPongTag, comm, &pong_sent));
      has_moved = true;
      echoes = their_ping == 0;
      if (echoes) listen();
    }
    pause.after_look(has_moved);
  }
  return round_trips;
}

// One rank's part in the streams: a sender to the right, a receiver from the left, and agreements
// of all ranks on whether to go on.
class Stream {
 public:
  Stream(Communicator& communicator, const Neighbours& neighbours, double round_trip_s)
      : communicator_(communicator),
        comm_(communicator.handle()),
        neighbours_(neighbours),
        round_trip_s_(round_trip_s),
        sends_(neighbours.right == Neighbours::kNobody ? 0 : kSlots, MPI_REQUEST_NULL),
        receives_(neighbours.left == Neighbours::kNobody ? 0 : kSlots, MPI_REQUEST_NULL),
        outgoing_(sends_.empty() ? 0 : kMostMessage),
        incoming_(receives_.size() * kMostMessage) {
    is_sent_ = sends_.empty();
    has_come_ = receives_.empty();
  }

  // The rate and uncertainty of the slowest link, the same on all ranks.
  RateEstimate run() {
    for (std::size_t slot = 0; slot < receives_.size(); ++slot) post(slot);
    if (!sends_.empty()) listen();
    begin_s_ = now_s();
    agree();
    Pause pause(communicator_, 0.0);
    while (!is_sent_ || !has_come_ || !is_over_ || acknowledged_ != received_ + has_come_) {
      const bool has_moved = receive() | acknowledge() | hear() | send() | progress_agreement();
      pause.after_look(has_moved);
    }
    for (Acknowledgement& slot : acknowledgements_) finish(slot.request);
    const RateEstimate mine = receives_.empty()
                                  ? RateEstimate{std::numeric_limits<double>::max(), 0.0}
                                  : estimate_rate(arrivals_);
    RateEstimate all = mine;
    for (const RateEstimate& other : communicator_.all_gather(mine)) {
      all.bytes_per_s = std::min(all.bytes_per_s, other.bytes_per_s);
      all.uncertainty = std::max(all.uncertainty, other.uncertainty);
    }
    return all;
  }

 private:
  static constexpr std::size_t kSlots = 32;
  static constexpr std::size_t kLeastMessage = 4096, kMostMessage = std::size_t{1} << 18;
  static constexpr std::uint64_t kLeastAcknowledged = 2 * kLeastMessage;
  // So many messages are in flight that a late one keeps no other waiting.
  static constexpr std::size_t kMessagesUnderWay = 16;
  static constexpr double kLeastRoom = 16384.0, kMostRoom = kSlots * kMostMessage;
  static constexpr double kSlack_s = 80e-3, kEpoch_s = 30e-3;
  static constexpr double kShortest_s = 0.3, kTrips = 16.0, kEnough = 0.05;
  static constexpr double kLongest_s = 3.0, kMostTrips = 25.0;

  void finish(MPI_Request& request) { communicator_.wait(request, "a measurement of the network"); }
  void post(std::size_t slot) {
    DP_CHECK_MPI(MPI_Irecv(incoming_.data() + slot * kMostMessage, static_cast<int>(kMostMessage),
                           MPI_BYTE, neighbours_.left, kDataTag, comm_, &receives_[slot]));
  }
  void listen() {
    DP_CHECK_MPI(MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, neighbours_.right, kAcknowledgeTag,
                           comm_, &acknowledgement_came_));
  }

  // Takes the messages that have come from the left, in their order. The last message is empty.
  bool receive() {
    bool has_moved = false;
    MPI_Status status;
    while (!has_come_ && has_ended(receives_[next_receive_], &status)) {
      int bytes = 0;
      DP_CHECK_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
      has_moved = true;
      has_come_ = bytes == 0;
      received_ += static_cast<std::uint64_t>(bytes);
      if (has_come_) {
        cancel_receives();
        break;
      }
      latest_ = {now_s(), received_};
      if (!is_over_) arrivals_.push_back(latest_);  // then some ranks may not send any more
      post(next_receive_);
      next_receive_ = (next_receive_ + 1) % receives_.size();
    }
    return has_moved;
  }
  // Nothing more will come.
  void cancel_receives() {
    for (MPI_Request& request : receives_) {
      if (request == MPI_REQUEST_NULL) continue;
      DP_CHECK_MPI(MPI_Cancel(&request));
      DP_CHECK_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
  }

  // Tells the left neighbour how much has come. With two ranks such a message waits behind the data
  // that goes the same way, so several are in flight.
  bool acknowledge() {
    const std::uint64_t known = received_ + (has_come_ ? 1 : 0);  // one more: the last
    if (acknowledged_ == known) return false;
    for (Acknowledgement& slot : acknowledgements_) {
      if (slot.request != MPI_REQUEST_NULL && !has_ended(slot.request)) continue;
      acknowledged_ = known;
      slot.what = {latest_.at_s, known};
      DP_CHECK_MPI(MPI_Isend(&slot.what, sizeof slot.what, MPI_BYTE, neighbours_.left,
                             kAcknowledgeTag, comm_, &slot.request));
      return true;
    }
    return false;
  }
  // Takes the acknowledgements of the right neighbour.
  bool hear() {
    if (!has_ended(acknowledgement_came_)) return false;
    if (heard_.bytes == sent_ + 1 && is_last_sent_) {
      is_sent_ = true;
      for (MPI_Request& request : sends_) finish(request);
      return true;
    }
    delivered_ = heard_.bytes;
    listen();
    // The receiver's clock: acknowledgements may come in bunches.
    const double passed_s = heard_.at_s - epoch_.at_s;
    if (passed_s >= std::max(round_trip_s_, kEpoch_s)) {
      const double rate = static_cast<double>(heard_.bytes - epoch_.bytes) / passed_s;
      if (epoch_.at_s > 0.0) best_bytes_per_s_ = std::max(best_bytes_per_s_, rate);
      room_ =
          std::min(kLeastRoom + best_bytes_per_s_ * (2.0 * round_trip_s_ + kSlack_s), kMostRoom);
      epoch_ = heard_;
    }
    return true;
  }

  // Keeps as much in flight as the link carries in two round trips and kSlack_s at the best rate so
  // far. More would only wait in a queue and delay the other direction's acknowledgements.
  bool send() {
    if (is_sent_ || is_last_sent_) return false;
    const auto bytes = std::clamp(static_cast<std::size_t>(room_) / kMessagesUnderWay,
                                  kLeastMessage, kMostMessage);
    bool has_moved = false;
    for (MPI_Request& request : sends_) {
      if (request != MPI_REQUEST_NULL && !has_ended(request)) continue;
      if (!is_enough_ && static_cast<double>(sent_ - delivered_ + bytes) > room_) break;
      has_moved = true;
      send_message(request, is_enough_ ? 0 : bytes);
      is_last_sent_ = is_enough_;
      if (is_last_sent_) break;
    }
    return has_moved;
  }
  void send_message(MPI_Request& request, std::size_t bytes) {
    DP_CHECK_MPI(MPI_Isend(outgoing_.data(), static_cast<int>(bytes), MPI_BYTE, neighbours_.right,
                           kDataTag, comm_, &request));
    sent_ += bytes;
  }

  // Makes one agreement after the other until all ranks have measured enough.
  void agree() {
    agreed_s_ = now_s();
    const double time_s = agreed_s_ - begin_s_;
    has_enough_ = 1;
    if (!receives_.empty() && time_s < kLongest_s + kMostTrips * round_trip_s_) {
      const bool is_long = time_s >= std::max(kShortest_s, kTrips * round_trip_s_);
      has_enough_ = is_long && estimate_rate(arrivals_).uncertainty <= kEnough ? 1 : 0;
    }
    DP_CHECK_MPI(
        MPI_Iallreduce(&has_enough_, &have_all_enough_, 1, MPI_INT, MPI_MIN, comm_, &agreement_));
  }
  bool progress_agreement() {
    constexpr double kBetween_s = 10e-3;
    if (is_over_) return false;
    const bool has_moved = has_ended(agreement_);
    if (agreement_ != MPI_REQUEST_NULL) return has_moved;
    if (have_all_enough_ != 0) {
      is_enough_ = is_over_ = true;
    } else if (now_s() - agreed_s_ > kBetween_s) {
      agree();
    }
    return has_moved;
  }

  Communicator& communicator_;
  MPI_Comm comm_;
  Neighbours neighbours_;
  double round_trip_s_;
  double begin_s_ = 0.0;

  std::vector<MPI_Request> sends_, receives_;
  std::vector<std::byte> outgoing_, incoming_;
  std::uint64_t sent_ = 0, delivered_ = 0;  // to the right, and what surely has arrived of it
  std::uint64_t received_ = 0, acknowledged_ = 0;  // from the left
  std::vector<Arrival> arrivals_;
  Arrival latest_;
  std::size_t next_receive_ = 0;
  bool is_last_sent_ = false, is_sent_ = false, has_come_ = false;
  double room_ = kLeastRoom, best_bytes_per_s_ = 0.0;
  Arrival heard_, epoch_;  // the last that the right neighbour has said, and when the epoch began
  MPI_Request acknowledgement_came_ = MPI_REQUEST_NULL;
  struct Acknowledgement {
    Arrival what;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::array<Acknowledgement, kSlots> acknowledgements_;

  int has_enough_ = 0, have_all_enough_ = 0;
  MPI_Request agreement_ = MPI_REQUEST_NULL;
  double agreed_s_ = 0.0;
  bool is_enough_ = false, is_over_ = false;
};

// What the codec sends of fp32, in segments of the usual size.
double payload_share(const CodecSpec& spec, std::span<const TensorSlot> tensors) {
  if (!find_codec(spec.name)->is_exchange) {
    constexpr std::size_t kSegment = std::size_t{1} << 16;
    return static_cast<double>(make_codec(spec)->expected_payload_bytes(kSegment)) /
           (kSegment * sizeof(float));
  }
  std::vector<TensorSlot> matrices;
  std::size_t floats = 0;
  for (const TensorSlot& tensor : tensors) {
    if (tensor.is_1d || tensor.is_exact) continue;
    matrices.push_back(tensor);
    floats += tensor.elements();
  }
  if (floats == 0) return 1.0;
  const PowerSgdPlan plan = plan_powersgd(matrices, spec.whole("rank"));
  return static_cast<double>(plan.first_floats + plan.second_floats) / static_cast<double>(floats);
}

}  // namespace

LinkProbe probe_link(Communicator& communicator) {
  if (communicator.size() == 1) return {};
  const Neighbours neighbours(communicator);
  const double mine_s = estimate_latency(measure_round_trips(communicator, neighbours));
  const std::vector<double> all_s = communicator.all_gather(mine_s);
  const double latency_s = *std::max_element(all_s.begin(), all_s.end());
  const RateEstimate rate = Stream(communicator, neighbours, 2.0 * latency_s).run();
  return {.bytes_per_s = rate.bytes_per_s, .latency_s = latency_s, .uncertainty = rate.uncertainty};
}

std::size_t choose_bucket_bytes(const LinkProbe& link, std::size_t ranks, const CodecSpec& codec,
                                std::span<const TensorSlot> tensors) {
  constexpr double kWakeUp_s = 0.5e-3, kTimesTheWait = 2.0;
  constexpr double kMiB = 1 << 20;
  const double bytes = kTimesTheWait * static_cast<double>(ranks) * (link.latency_s + kWakeUp_s) *
                       link.bytes_per_s / payload_share(codec, tensors);
  const double power = std::ceil(std::log2(std::max(bytes, 1.0) / kMiB));
  return static_cast<std::size_t>(kMiB * std::exp2(std::clamp(power, -2.0, 3.0)));
}

}  // namespace dp
