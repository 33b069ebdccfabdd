#include "comm/ring.hpp"

#include <chrono>
#include <cmath>
#include <cstring>

#include "comm/check.hpp"
#include "comm/ring_order.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Adds the time between its construction and its end to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum_s) : sum_s_(sum_s) {}
  ~Stopwatch() { sum_s_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_s_;
  Clock::time_point start_ = Clock::now();
};

// Buffers and requests. There are `window` send slots and 2 x window receive slots, each of which
// owns a buffer. A forwarded payload leaves from the receive slot that it came into, which stays
// taken until the send has ended. As at most `window` sends are under way, at least `window`
// receives are always posted or waiting to be handled, which is what makes the fixed order free of
// deadlocks: of all receives that are stuck in the ring take the first in the order. What it waits
// for comes before it, is therefore not stuck, and finds its receive posted.
class Ring final : public Exchange {
 public:
  explicit Ring(const ExchangeSetup& setup)
      : setup_(setup),
        rank_(static_cast<std::size_t>(setup.communicator->rank())),
        shape_{setup.gradient.size(), static_cast<std::size_t>(setup.communicator->size()),
               setup.segment},
        receive_cursor_(shape_, setup.window, (rank_ + shape_.ranks - 1) % shape_.ranks),
        work_cursor_(receive_cursor_),
        send_cursor_(shape_, setup.window, rank_) {
    DP_ASSERT(setup.window > 0 && setup.segment > 0, "window {}, segment {}", setup.window,
              setup.segment);
    DP_ASSERT(setup.segment % setup.codec->block() == 0, "segment {} and block {}", setup.segment,
              setup.codec->block());
    if (is_idle()) return;
    const std::size_t w = setup.window, requests = 3 * w + 1 + (shape_.ranks - 1);
    receives_.resize(2 * w);
    sends_.resize(w);
    arrival_order_.resize(2 * w);
    requests_.assign(requests, MPI_REQUEST_NULL);
    completed_.resize(requests);
    statuses_.resize(requests);
    if (!setup.codec->is_lossless() && setup.residual == nullptr) {
      scratch_ = memory().allocate(std::min(setup.segment, shape_.chunk_size(0)));
    }
    for (RingCursor c = make_rewound(send_cursor_); !c.at_end(); c.advance()) {
      if (c.piece().hop <= shape_.ranks - 1) ++encodes_per_step_;
    }
  }

  [[nodiscard]] BufferNeeds needs() const override {
    if (is_idle()) return {};
    const std::size_t longest = std::min(shape_.segment, shape_.chunk_size(0));
    return {3 * setup_.window, kRingHeaderBytes + setup_.codec->max_payload_bytes(longest)};
  }

  void post_receives(BufferSet& buffers, std::uint64_t step) override {
    buffers_ = &buffers;
    step_ = step;
    tag_parity_ ^= 1u;
    is_started_ = false;
    is_finite_ = true;
    ranks_started_ = 1;
    encodes_ = sends_under_way_ = arrival_head_ = arrival_count_ = 0;
    receive_cursor_.rewind();
    work_cursor_.rewind();
    send_cursor_.rewind();
    if (is_idle()) return;
    for (Receive& receive : receives_) receive = {};
    post_more();
    post_start_notice();
  }

  void start() override {
    is_started_ = true;
    if (is_idle()) {
      // A ring of one rank: the sum is there already. Only the verdict is to be found.
      is_finite_ = memory().is_finite(setup_.gradient.data(), setup_.gradient.size());
      return;
    }
    notice_ = header(kRingStartKind, 0);
    for (std::size_t i = 0; i + 1 < shape_.ranks; ++i) {
      const auto to = checked_cast<int>((rank_ + 1 + i) % shape_.ranks);
      DP_CHECK_MPI(MPI_Isend(&notice_, sizeof notice_, MPI_BYTE, to, tag(1),
                             setup_.communicator->handle(), &requests_[notice_request() + 1 + i]));
      stats_.sent_bytes += sizeof notice_;
    }
  }

  bool progress() override {
    if (is_idle()) return false;
    const bool has_completed = complete_transfers();
    if (!is_started_) return has_completed;
    const bool has_acted = send_own() || handle_arrival();
    return has_completed || has_acted;
  }

  [[nodiscard]] bool delivered() const override {
    return is_started_ && (is_idle() || (work_cursor_.at_end() && send_cursor_.at_end()));
  }

  [[nodiscard]] bool done() const override {
    if (!delivered() || ranks_started_ != shape_.ranks) return is_started_ && is_idle();
    for (const MPI_Request request : requests_) {
      if (request != MPI_REQUEST_NULL) return false;
    }
    return true;
  }

  [[nodiscard]] bool finite() const override { return is_finite_; }

  [[nodiscard]] bool waits_for_peer() const override {
    return is_started_ && !is_idle() && ranks_started_ < shape_.ranks && sends_under_way_ == 0;
  }

  void put_back_delivered() override {
    if (setup_.residual == nullptr || is_idle()) return;
    const std::size_t owned = (rank_ + 1) % shape_.ranks, begin = shape_.chunk_begin(owned);
    memory().add(setup_.gradient.data() + begin, setup_.residual + begin, shape_.chunk_size(owned));
  }

 private:
  enum class State : std::uint8_t { free, posted, arrived, forwarding };
  struct Receive {
    State state = State::free;
    std::size_t bytes = 0;
  };
  struct Send {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t forwards = kNone;  // the receive slot whose buffer it sends
  };

  static RingCursor make_rewound(RingCursor cursor) {
    cursor.rewind();
    return cursor;
  }

  // Requests: receives, sends, the receive of start notices, their sends.
  [[nodiscard]] std::size_t send_request(std::size_t slot) const { return receives_.size() + slot; }
  [[nodiscard]] std::size_t notice_request() const { return receives_.size() + sends_.size(); }
  [[nodiscard]] std::byte* receive_buffer(std::size_t slot) const { return buffers_->at(slot); }
  [[nodiscard]] std::byte* send_buffer(std::size_t slot) const {
    return buffers_->at(receives_.size() + slot);
  }

  [[nodiscard]] bool is_idle() const { return shape_.ranks < 2 || shape_.elements == 0; }
  // Messages of one tag arrive in the order in which they were sent, so a bucket needs one, and
  // another for the next exchange, which a fast rank may have begun. It cannot be further ahead: it
  // ends an exchange only with everybody's start notice.
  [[nodiscard]] int tag(std::uint32_t kind) const {
    return checked_cast<int>((std::uint64_t{setup_.bucket} * 2 + tag_parity_) * 2 + kind);
  }
  [[nodiscard]] RingHeader header(std::uint32_t kind, std::uint32_t number) const {
    return {kind, static_cast<std::uint32_t>(step_), setup_.bucket, number};
  }
  [[nodiscard]] const SegmentMemory& memory() const { return setup_.codec->memory(); }
  [[nodiscard]] std::span<float> values(const RingPiece& piece) const {
    return setup_.gradient.subspan(piece.begin, piece.size);
  }
  [[nodiscard]] int left() const {
    return checked_cast<int>((rank_ + shape_.ranks - 1) % shape_.ranks);
  }
  [[nodiscard]] int right() const { return checked_cast<int>((rank_ + 1) % shape_.ranks); }

  // Posts receives in the messages' order while there are free slots.
  void post_more() {
    for (std::size_t slot = 0; slot < receives_.size() && !receive_cursor_.at_end(); ++slot) {
      if (receives_[slot].state != State::free) continue;
      receives_[slot].state = State::posted;
      arrival_order_[(arrival_head_ + arrival_count_++) % arrival_order_.size()] = slot;
      receive_cursor_.advance();
      DP_CHECK_MPI(MPI_Irecv(receive_buffer(slot), checked_cast<int>(buffers_->bytes()), MPI_BYTE,
                             left(), tag(0), setup_.communicator->handle(), &requests_[slot]));
    }
  }

  void post_start_notice() {
    DP_CHECK_MPI(MPI_Irecv(&incoming_notice_, sizeof incoming_notice_, MPI_BYTE, MPI_ANY_SOURCE,
                           tag(1), setup_.communicator->handle(), &requests_[notice_request()]));
  }

  // Takes note of the transfers that have ended. Never waits.
  bool complete_transfers() {
    int count = 0;
    const int code = MPI_Testsome(checked_cast<int>(requests_.size()), requests_.data(), &count,
                                  completed_.data(), statuses_.data());
    if (code != MPI_SUCCESS) {
      check_mpi_statuses(code, std::span(statuses_).first(static_cast<std::size_t>(count)),
                         "MPI_Testsome", __FILE__, __LINE__);
    }
    if (count == MPI_UNDEFINED || count == 0) return false;
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]);
      if (at < receives_.size()) {
        int bytes = 0;
        DP_CHECK_MPI(MPI_Get_count(&statuses_[static_cast<std::size_t>(i)], MPI_BYTE, &bytes));
        receives_[at].bytes = checked_cast<std::size_t>(bytes);
        receives_[at].state = State::arrived;
        stats_.received_bytes += receives_[at].bytes;
      } else if (at < notice_request()) {
        Send& send = sends_[at - receives_.size()];
        if (send.forwards != Send::kNone) receives_[send.forwards].state = State::free;
        --sends_under_way_;
      } else if (at == notice_request()) {
        check_header(incoming_notice_, header(kRingStartKind, 0),
                     statuses_[static_cast<std::size_t>(i)].MPI_SOURCE);
        stats_.received_bytes += sizeof incoming_notice_;
        if (++ranks_started_ < shape_.ranks) post_start_notice();
      }
    }
    post_more();
    return true;
  }

  void check_header(const RingHeader& got, const RingHeader& want, int from) const {
    if ((got.kind & ~kRingNotFinite) == want.kind && got.step == want.step &&
        got.bucket == want.bucket && got.number == want.number) {
      return;
    }
    throw_error(ErrorKind::communication,
                "rank {} got message {} of bucket {} in step {} (kind {:08x}) from rank {} where "
                "message {} of bucket {} in step {} was due: the ranks do not run the same program",
                rank_, got.number, got.bucket, got.step, got.kind, from, want.number, want.bucket,
                want.step);
  }

  // The send slot that is free, or Send::kNone.
  [[nodiscard]] std::size_t free_send_slot() const {
    for (std::size_t slot = 0; slot < sends_.size(); ++slot) {
      if (requests_[send_request(slot)] == MPI_REQUEST_NULL) return slot;
    }
    return Send::kNone;
  }

  // Hop 0 needs nothing from others: sends the next segment of this rank's own chunk.
  bool send_own() {
    if (send_cursor_.at_end() || send_cursor_.piece().hop != 0) return false;
    const std::size_t slot = free_send_slot();
    if (slot == Send::kNone) return false;
    send_encoded(slot, false, {});  // nothing was received
    return true;
  }

  // Handles the first message in the order, if it has come and what it leads to can be sent.
  bool handle_arrival() {
    if (work_cursor_.at_end() || arrival_count_ == 0) return false;
    const std::size_t slot = arrival_order_[arrival_head_];
    if (receives_[slot].state != State::arrived) return false;
    const RingPiece piece = work_cursor_.piece();
    const bool leads_on = piece.hop + 1 < shape_.hops();
    const std::size_t send_slot = leads_on ? free_send_slot() : 0;
    if (send_slot == Send::kNone) return false;
    if (leads_on && send_cursor_.piece().hop == 0) return false;  // own segments come first

    std::byte* message = receive_buffer(slot);
    RingHeader got;
    if (receives_[slot].bytes >= sizeof got) std::memcpy(&got, message, sizeof got);
    check_header(got, header(kRingSegmentKind, work_cursor_.number()), left());
    const bool is_finite = (got.kind & kRingNotFinite) == 0;
    const std::span<const std::byte> payload(message + kRingHeaderBytes,
                                             receives_[slot].bytes - kRingHeaderBytes);
    arrival_head_ = (arrival_head_ + 1) % arrival_order_.size();
    --arrival_count_;
    work_cursor_.advance();
    receives_[slot].state = State::free;
    if (leads_on) {
      DP_ASSERT(
          send_cursor_.piece().begin == piece.begin && send_cursor_.piece().hop == piece.hop + 1,
          "hop {} of {} leads to hop {} of {}", piece.hop, piece.begin, send_cursor_.piece().hop,
          send_cursor_.piece().begin);
    }
    if (piece.hop < shape_.ranks - 1) {
      send_encoded(send_slot, !is_finite, payload);
    } else {
      is_finite_ = is_finite_ && is_finite;
      {
        const Stopwatch watch(stats_.decode_s);
        setup_.codec->decode(payload, values(piece));
      }
      if (leads_on) forward(send_slot, slot);
    }
    post_more();
    return true;
  }

  // Adds the payload received to the send cursor's segment (nothing on hop 0), encodes and sends
  // it.
  void send_encoded(std::size_t slot, bool is_flagged, std::span<const std::byte> received) {
    const RingPiece piece = send_cursor_.piece();
    const bool has_received = piece.hop > 0;
    std::byte* message = send_buffer(slot);
    const std::span<std::byte> payload(message + kRingHeaderBytes,
                                       buffers_->bytes() - kRingHeaderBytes);
    const EncodePlace place{.seed = setup_.seed,
                            .step = step_,
                            .bucket = setup_.bucket,
                            .rank = static_cast<std::uint32_t>(rank_),
                            .offset = setup_.offset + piece.begin};
    float* residual = setup_.residual == nullptr ? nullptr : setup_.residual + piece.begin;
    const bool is_sampled = is_sample();
    // A sample looks at the values between adding and encoding.
    const bool is_one_trip = has_received && !is_sampled && setup_.codec->is_on_device();
    if (has_received && !is_one_trip) {
      const Stopwatch watch(stats_.decode_s);
      setup_.codec->decode_add(received, values(piece));
    }
    if (is_sampled) sample_before(piece, residual);
    EncodeResult result;
    {
      const Stopwatch watch(stats_.encode_s);
      result = is_one_trip ? setup_.codec->decode_add_encode(received, values(piece), residual,
                                                             payload, place)
                           : setup_.codec->encode(values(piece), residual, payload, place);
      if (!result.finite) {
        is_flagged = true;
        if (has_received) {
          setup_.codec->decode(received, values(piece));
          result = setup_.codec->encode(values(piece), residual, payload, place);
        }
      }
    }
    const auto encoded = payload.first(result.payload_bytes);
    if (is_sampled && !is_flagged) sample_after(piece, residual, encoded);
    if (piece.hop == shape_.ranks - 1) {
      // This rank owns the chunk: from here on it holds what all others will decode.
      is_finite_ = is_finite_ && !is_flagged;
      if (!setup_.codec->is_lossless() || !result.finite) {
        const Stopwatch watch(stats_.decode_s);
        setup_.codec->decode(encoded, values(piece));
      }
    }
    const RingHeader h =
        header(kRingSegmentKind | (is_flagged ? kRingNotFinite : 0), send_cursor_.number());
    std::memcpy(message, &h, sizeof h);
    sends_[slot].forwards = Send::kNone;
    send(slot, message, kRingHeaderBytes + encoded.size());
  }

  // Sends a received payload on as it is, under the header that its place in this rank's order asks
  // for.
  void forward(std::size_t slot, std::size_t receive_slot) {
    std::byte* message = receive_buffer(receive_slot);
    RingHeader h;
    std::memcpy(&h, message, sizeof h);
    h.number = send_cursor_.number();
    std::memcpy(message, &h, sizeof h);
    receives_[receive_slot].state = State::forwarding;
    sends_[slot].forwards = receive_slot;
    send(slot, message, receives_[receive_slot].bytes);
  }

  void send(std::size_t slot, const std::byte* message, std::size_t bytes) {
    DP_CHECK_MPI(MPI_Isend(message, checked_cast<int>(bytes), MPI_BYTE, right(), tag(0),
                           setup_.communicator->handle(), &requests_[send_request(slot)]));
    stats_.sent_bytes += bytes;
    ++sends_under_way_;
    send_cursor_.advance();
  }

  // One encode a step is measured, another one each step.
  bool is_sample() {
    return !setup_.codec->is_lossless() && encodes_++ == step_ % encodes_per_step_;
  }
  void sample_before(const RingPiece& piece, const float* residual) {
    sampled_ = memory().squares_of_sum(values(piece).data(), residual, piece.size);
  }
  void sample_after(const RingPiece& piece, const float* residual,
                    std::span<const std::byte> encoded) {
    if (!std::isfinite(sampled_)) return;
    stats_.sampled_value_squares += sampled_;
    if (residual != nullptr) {
      stats_.sampled_error_squares += memory().squares_of_sum(residual, nullptr, piece.size);
      return;
    }
    setup_.codec->decode(encoded, {scratch_.get(), piece.size});
    stats_.sampled_error_squares +=
        memory().squares_of_difference(scratch_.get(), values(piece).data(), piece.size);
  }

  ExchangeSetup setup_;
  std::size_t rank_;
  RingShape shape_;
  BufferSet* buffers_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint32_t tag_parity_ = 0;
  bool is_started_ = false;
  bool is_finite_ = true;
  std::size_t ranks_started_ = 1;

  RingCursor receive_cursor_;  // the next receive to post
  RingCursor work_cursor_;     // the next message to handle
  RingCursor send_cursor_;     // the next message to send
  std::vector<Receive> receives_;
  std::vector<Send> sends_;
  std::vector<std::size_t> arrival_order_;  // a queue of posted and arrived receive slots
  std::size_t arrival_head_ = 0, arrival_count_ = 0;
  std::size_t sends_under_way_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  RingHeader notice_, incoming_notice_;

  std::size_t encodes_ = 0, encodes_per_step_ = 0;
  double sampled_ = 0.0;
  std::shared_ptr<float> scratch_;  // a decoded segment
};

}  // namespace

std::uint64_t ring_wire_bytes(const RingShape& shape, std::size_t rank, const Codec& codec) {
  if (shape.ranks < 2 || shape.elements == 0) return 0;
  const auto chunk_bytes = [&](std::size_t chunk) {
    std::uint64_t bytes = 0;
    for (std::size_t at = 0; at < shape.chunk_size(chunk % shape.ranks); at += shape.segment) {
      const std::size_t n = std::min(shape.segment, shape.chunk_size(chunk % shape.ranks) - at);
      const auto payload = codec.fixed_payload_bytes(n);
      DP_ASSERT(payload.has_value(), "{} has payloads of varying size", codec.spec().name);
      bytes += kRingHeaderBytes + *payload;
    }
    return bytes;
  };
  std::uint64_t all = 0;
  for (std::size_t chunk = 0; chunk < shape.ranks; ++chunk) all += chunk_bytes(chunk);
  return 2 * all - chunk_bytes(rank + 1) - chunk_bytes(rank + 2) +
         kRingHeaderBytes * (shape.ranks - 1);
}

std::unique_ptr<Exchange> make_ring(const ExchangeSetup& setup) {
  return std::make_unique<Ring>(setup);
}

}  // namespace dp
