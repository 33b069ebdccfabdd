// Outline: a state machine of two inner exchanges. In the first phase progress() multiplies each
// matrix M = gradient + residual by the Q of the step before. The first exchange sums these factors
// over all ranks. Then every rank orthonormalises the sum to P and multiplies its own M^T by P,
// which gives its own Q. The second exchange sums these Q. At the end the gradient becomes P Q^T,
// the residual becomes M minus this rank's part P Q_k^T, and the scaled Q is kept for the next
// step. Tensors that are not factored go through the first exchange unchanged. A call of progress()
// computes one tensor, so that other buckets do not wait long.
#include "comm/topologies/powersgd.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "comm/exchange/segment_coder.hpp"
#include "comm/topologies/powersgd_factors.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

using Tensor = PowerSgdPlan::Tensor;

// The phases of an exchange. In a phase that computes, each call of progress() handles one tensor.
enum class Phase : std::uint8_t {
  waiting,        // until start() is called
  first_factors,  // P_k = M_k Q
  first_sum,      // the first exchange
  second_factors,
  second_sum,
  delivering,
  over,
};

// One of the two inner exchanges and the values that it sums.
struct Sum {
  std::vector<float> values;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<BufferSet> buffers;
};

class PowerSgd final : public Exchange {
 public:
  explicit PowerSgd(const PowerSgdSetup& setup)
      : setup_(setup.exchange),
        factor_rank_(setup.factor_rank),
        plan_(plan_powersgd(setup.tensors, setup.factor_rank)) {
    DP_ASSERT(setup_.codec->is_lossless() && !setup_.codec->is_on_device(),
              "powersgd needs a lossless codec on the CPU for its factors, not {}",
              setup_.codec->spec().name);
    DP_ASSERT(plan_.tensors.empty() ? setup_.gradient.empty()
                                    : plan_.tensors.back().begin + elements(plan_.tensors.back()) ==
                                          setup_.gradient.size(),
              "the tensors do not fill the bucket, which has {} values", setup_.gradient.size());
    if (is_idle()) return;
    make_sum(first_, plan_.first_floats, setup_.stream, *setup.topology);
    make_sum(second_, plan_.second_floats, setup_.stream + 1, *setup.topology);
    own_q_.resize(plan_.second_floats);
    next_q_.resize(plan_.second_floats);
    std::size_t work = 0;
    for (std::size_t t = 0; t < plan_.tensors.size(); ++t) {
      const Tensor& tensor = plan_.tensors[t];
      if (!tensor.is_factored) continue;
      factored_.push_back(t);
      work = std::max(work, powersgd::orthonormalise_work(tensor.rows, factor_rank_));
      for (std::size_t j = 0; j < factor_rank_; ++j) draw_column(t, j, 0);
    }
    work_.resize(work);
  }

  // The inner exchanges have their own buffers, since their messages are as small as the factors.
  [[nodiscard]] BufferNeeds needs() const override { return {}; }

  void post_receives(BufferSet&, std::uint64_t step) override {
    step_ = step;
    phase_ = Phase::waiting;
    is_finite_ = true;
    first_not_finite_ = kAllFinite;
    if (is_idle()) return;
    first_.exchange->post_receives(*first_.buffers, step);
    second_.exchange->post_receives(*second_.buffers, step);
  }

  void start() override {
    enter(Phase::first_factors);
    if (!is_idle()) return;
    is_finite_ = gradient_is_finite();
    enter(Phase::over);
  }

  bool progress() override {
    if (is_idle()) return false;
    const bool has_moved = progress_sum(first_) | progress_sum(second_);
    const auto begin = TraceClock::now();
    double* spent_s = nullptr;
    TraceKind kind{};
    const std::size_t tensor = at_;
    switch (phase_) {
      case Phase::waiting:
      case Phase::over:
        return has_moved;
      case Phase::first_factors:
        spent_s = &stats_.encode_s;
        kind = TraceKind::p_factor;
        compute_first(plan_.tensors[at_]);
        if (++at_ < plan_.tensors.size()) break;
        first_.exchange->start();
        enter(Phase::first_sum);
        break;
      case Phase::first_sum:
        if (!first_.exchange->delivered()) return has_moved;
        is_finite_ = first_.exchange->finite();
        enter(Phase::second_factors);
        if (!is_finite_) {
          static_cast<void>(gradient_is_finite());
          std::ranges::fill(own_q_, 0.0f);
        }
        break;
      case Phase::second_factors:
        spent_s = &stats_.encode_s;
        kind = TraceKind::q_factor;
        if (is_finite_) compute_second(plan_.tensors[at_]);
        if (++at_ < plan_.tensors.size()) break;
        second_.values = own_q_;
        second_.exchange->start();
        enter(Phase::second_sum);
        break;
      case Phase::second_sum:
        if (!second_.exchange->delivered()) return has_moved;
        is_finite_ = is_finite_ && second_.exchange->finite();
        enter(Phase::delivering);
        break;
      case Phase::delivering:
        spent_s = &stats_.decode_s;
        kind = TraceKind::p_q_product;
        deliver(at_);
        if (++at_ < plan_.tensors.size()) break;
        enter(Phase::over);
        break;
    }
    if (spent_s == nullptr) return true;
    const auto end = TraceClock::now();
    *spent_s += std::chrono::duration<double>(end - begin).count();
    if (setup_.trace != nullptr) {
      setup_.trace->add({.begin_ns = trace_ns(begin),
                         .end_ns = trace_ns(end),
                         .step = static_cast<std::uint32_t>(step_),
                         .id = setup_.bucket,
                         .segment = static_cast<std::uint32_t>(tensor),
                         .kind = kind});
    }
    return true;
  }

  [[nodiscard]] bool delivered() const override { return phase_ == Phase::over; }
  [[nodiscard]] bool done() const override {
    return delivered() && (is_idle() || (first_.exchange->done() && second_.exchange->done()));
  }
  [[nodiscard]] bool finite() const override { return is_finite_; }
  [[nodiscard]] std::size_t first_not_finite() const override { return first_not_finite_; }
  [[nodiscard]] bool stop_is_wished() const override {
    return first_.exchange->stop_is_wished() || second_.exchange->stop_is_wished();
  }

  [[nodiscard]] bool waits_for_peer() const override {
    if (phase_ == Phase::first_sum) return first_.exchange->waits_for_peer();
    return phase_ == Phase::second_sum && second_.exchange->waits_for_peer();
  }

  // Every rank puts its contribution to the sum, P Q_k^T, back into its residual.
  void put_back_delivered() override {
    if (setup_.residual == nullptr || is_idle() || !is_finite_) return;
    for (const std::size_t t : factored_) {
      const Tensor& tensor = plan_.tensors[t];
      powersgd::add_product(shape(tensor), first_.values.data() + tensor.first,
                            own_q_.data() + tensor.second, factor_rank_,
                            setup_.residual + tensor.begin);
    }
  }

  void let_go() override {
    if (is_idle()) return;
    first_.exchange->let_go();
    second_.exchange->let_go();
  }

  // Besides the residual, only Q is kept from step to step.
  void list_state(const std::string& prefix, StateVisitor& visitor) override {
    if (!next_q_.empty()) {
      visitor.values(prefix + "q", std::span(next_q_), StateShare::replicated);
    }
  }

 private:
  // Whether this rank's gradient is finite. If not, notes the first value that is not finite.
  [[nodiscard]] bool gradient_is_finite() {
    const SegmentMemory& memory = setup_.codec->memory();
    const bool is_finite = memory.is_finite(setup_.gradient.data(), setup_.gradient.size());
    if (!is_finite) first_not_finite_ = find_not_finite(memory, setup_.gradient);
    return is_finite;
  }
  [[nodiscard]] static std::size_t elements(const Tensor& t) { return t.rows * t.columns; }
  [[nodiscard]] static powersgd::Matrix shape(const Tensor& t) { return {t.rows, t.columns}; }
  [[nodiscard]] bool is_idle() const {
    return setup_.transport->size() < 2 || setup_.gradient.empty();
  }
  [[nodiscard]] float* gradient(const Tensor& t) const { return setup_.gradient.data() + t.begin; }
  [[nodiscard]] float* residual(const Tensor& t) const {
    return setup_.residual == nullptr ? nullptr : setup_.residual + t.begin;
  }

  void make_sum(Sum& sum, std::size_t floats, std::uint32_t stream, const Topology& topology) {
    sum.values.resize(floats);
    ExchangeSetup inner = setup_;
    inner.stream = stream;
    inner.offset = 0;
    inner.gradient = sum.values;
    inner.residual = nullptr;
    sum.exchange = topology.make(inner);
    sum.buffers = std::make_unique<BufferSet>(sum.exchange->needs());
  }

  // Makes progress with an inner exchange and adds its costs to those of this exchange.
  bool progress_sum(Sum& sum) {
    const bool has_moved = sum.exchange->progress();
    const ExchangeStats& inner = sum.exchange->stats();
    stats_.encode_s += inner.encode_s;
    stats_.decode_s += inner.decode_s;
    stats_.sent_bytes += inner.sent_bytes;
    stats_.received_bytes += inner.received_bytes;
    stats_.sent_messages += inner.sent_messages;
    sum.exchange->clear_stats();
    return has_moved;
  }

  void enter(Phase phase) {
    phase_ = phase;
    at_ = 0;
  }

  // Draws column j of a tensor's next Q. Each value of `draw` gives a different column.
  void draw_column(std::size_t t, std::size_t j, std::uint64_t draw) {
    const Tensor& tensor = plan_.tensors[t];
    const CounterRng rng(setup_.seed, RandomStream::codec, (std::uint64_t{setup_.bucket} << 32) + t,
                         draw * factor_rank_ + j);
    float* column = next_q_.data() + tensor.second + j * tensor.columns;
    for (std::size_t i = 0; i < tensor.columns; ++i) column[i] = static_cast<float>(normal(rng, i));
  }

  void compute_first(const Tensor& tensor) {
    float* first = first_.values.data() + tensor.first;
    if (!tensor.is_factored) {
      std::copy_n(gradient(tensor), elements(tensor), first);
      return;
    }
    powersgd::multiply(shape(tensor), gradient(tensor), residual(tensor),
                       next_q_.data() + tensor.second, factor_rank_, first);
  }

  void compute_second(const Tensor& tensor) {
    if (!tensor.is_factored) return;
    float* p = first_.values.data() + tensor.first;
    powersgd::orthonormalise(tensor.rows, factor_rank_, p, work_.data());
    powersgd::multiply_transposed(shape(tensor), gradient(tensor), residual(tensor), p,
                                  factor_rank_, own_q_.data() + tensor.second);
  }

  void deliver(std::size_t t) {
    const Tensor& tensor = plan_.tensors[t];
    if (!is_finite_) {
      std::fill_n(gradient(tensor), elements(tensor), 0.0f);
      return;
    }
    const float* first = first_.values.data() + tensor.first;
    if (!tensor.is_factored) {
      std::copy_n(first, elements(tensor), gradient(tensor));
      return;
    }
    const float* own_q = own_q_.data() + tensor.second;
    const float* sum_q = second_.values.data() + tensor.second;
    if (factored_[step_ % factored_.size()] == t) sample_error(tensor, own_q);
    powersgd::deliver(shape(tensor), gradient(tensor), residual(tensor), first, own_q, sum_q,
                      factor_rank_);
    for (std::size_t j = 0; j < factor_rank_; ++j) keep_column(t, j);
  }

  // Samples one tensor per step. The squared error is norm(M)^2 - norm(Q_k)^2, because P is
  // orthonormal.
  void sample_error(const Tensor& tensor, const float* own_q) {
    const SegmentMemory& memory = setup_.codec->memory();
    const double all = memory.squares_of_sum(gradient(tensor), residual(tensor), elements(tensor));
    const double kept = memory.squares_of_sum(own_q, nullptr, factor_rank_ * tensor.columns);
    if (!std::isfinite(all)) return;
    stats_.sampled.value_squares += all;
    stats_.sampled.error_squares += std::max(0.0, all - kept);
  }

  // Scales column j of the Q that was just delivered and keeps it for the next step.
  void keep_column(std::size_t t, std::size_t j) {
    const Tensor& tensor = plan_.tensors[t];
    const std::size_t n = tensor.columns, begin = tensor.second + j * n;
    const float* from = second_.values.data() + begin;
    float largest = 0.0f;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(from[i]));
    if (largest < std::numeric_limits<float>::min()) {
      draw_column(t, j, step_ + 1);
      return;
    }
    // 2^exponent may not fit into a float, but the powers of two for each half of the exponent do.
    const int exponent = -std::ilogb(largest), half = exponent / 2;
    const float scale = std::ldexp(1.0f, half), rest = std::ldexp(1.0f, exponent - half);
    for (std::size_t i = 0; i < n; ++i) next_q_[begin + i] = from[i] * scale * rest;
  }

  ExchangeSetup setup_;
  std::size_t factor_rank_;
  PowerSgdPlan plan_;
  std::vector<std::size_t> factored_;  // the factored tensors' places in the plan
  Sum first_, second_;
  std::vector<float> own_q_;   // of this rank's M only
  std::vector<float> next_q_;  // the Q with which the next step begins
  std::vector<double> work_;

  Phase phase_ = Phase::waiting;
  std::size_t at_ = 0;  // the tensor that is next in this phase
  std::uint64_t step_ = 0;
  bool is_finite_ = true;
  std::size_t first_not_finite_ = kAllFinite;
};

}  // namespace

PowerSgdPlan plan_powersgd(std::span<const TensorSlot> tensors, std::size_t factor_rank) {
  DP_ASSERT(factor_rank > 0, "factor rank {}", factor_rank);
  PowerSgdPlan plan;
  std::size_t begin = 0;
  for (const TensorSlot& slot : tensors) {
    const bool is_factored = factor_rank * (slot.rows + slot.columns) < slot.elements();
    plan.tensors.push_back({.begin = begin,
                            .rows = slot.rows,
                            .columns = slot.columns,
                            .is_factored = is_factored,
                            .first = plan.first_floats,
                            .second = plan.second_floats});
    begin += slot.elements();
    plan.first_floats += is_factored ? factor_rank * slot.rows : slot.elements();
    plan.second_floats += is_factored ? factor_rank * slot.columns : 0;
  }
  return plan;
}

std::unique_ptr<Exchange> make_powersgd(const PowerSgdSetup& setup) {
  return std::make_unique<PowerSgd>(setup);
}

}  // namespace dp
