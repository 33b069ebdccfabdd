// Turns a rank's measurements into the costs of an epoch and the rows of the log. add() adds up the
// reducer's costs in comm_. end_epoch() makes a RankRecord of this rank's sums and gathers the
// records of all ranks. From these records rank 0 makes the rows of the log: of the epoch, of each
// rank, of each bucket and of each tensor. share_epoch() and list_state() keep rows and sums for a
// resumed run.
#include "app/output/epoch_account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "comm/mpi/link_model.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// One rank's part of an epoch, in the form in which it is gathered.
struct RankRecord {
  LoopTimes loop;
  double epoch_s, eval_s, checkpoint_s;
  CommCost comm;
  LossSums loss;
  std::uint64_t control_bytes;
  std::int64_t skipped_steps, own_skipped_steps;
  double wire_bytes;  // measured
  bool is_wire_measured;

  // The measured bytes or, if they were not measured, an estimate for TCP.
  [[nodiscard]] double on_wire() const {
    if (is_wire_measured) return wire_bytes;
    return LinkModel::wire_bytes(static_cast<double>(comm.sent_bytes + comm.sample_bytes +
                                                     comm.gathered.sent_bytes + control_bytes),
                                 static_cast<double>(comm.sent_messages));
  }
  [[nodiscard]] TimesAndBytes times() const {
    TimesAndBytes row = {.epoch_s = epoch_s,
                         .eval_s = eval_s,
                         .checkpoint_s = checkpoint_s,
                         .control_bytes = static_cast<std::int64_t>(control_bytes),
                         .statistics_s = loop.statistics,
                         .statistics_bytes = static_cast<std::int64_t>(comm.gathered.sent_bytes)};
    set_costs(row, loop, comm);
    return row;
  }
};

// Bytes and errors of several ranks add up; their times do not, since ranks work at the same time.
void add_bytes(CommCost& sum, const CommCost& more) {
  sum.sent_bytes += more.sent_bytes;
  sum.received_bytes += more.received_bytes;
  sum.sent_messages += more.sent_messages;
  sum.sampled += more.sampled;
  sum.sample_bytes += more.sample_bytes;
}

void add_cost(CommCost& sum, const CommCost& more) {
  add_bytes(sum, more);
  sum.comm_s += more.comm_s;
  sum.encode_s += more.encode_s;
  sum.decode_s += more.decode_s;
  sum.peer_wait_s += more.peer_wait_s;
  sum.wire_s += more.wire_s;
  sum.delivered_error_squares += more.delivered_error_squares;
  sum.delivered_value_squares += more.delivered_value_squares;
  sum.gathered.gather_s += more.gathered.gather_s;
  sum.gathered.gatherings += more.gathered.gatherings;
  sum.gathered.sent_bytes += more.gathered.sent_bytes;
}

// Adds the costs of a later step. The sum takes over the later step's residual norm.
void add_later(CommCost& sum, const CommCost& more) {
  add_cost(sum, more);
  sum.residual_squares = more.residual_squares;
}

// Adds the costs of another rank; squares of residuals add up.
void add_rank(CommCost& sum, const CommCost& more) {
  add_cost(sum, more);
  sum.residual_squares += more.residual_squares;
}

double ratio(double part, std::int64_t whole) {
  return whole > 0 ? part / static_cast<double>(whole) : kNotMeasured;
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0.0; }

EpochRow epoch_row(const EpochTally& tally, const EvaluationResult& result,
                   const std::vector<RankRecord>& ranks) {
  CommCost comm;
  LossSums loss;
  std::int64_t skipped_steps = 0;
  double wire_bytes = 0.0;
  std::vector<TimesAndBytes> times;
  for (const RankRecord& rank : ranks) {
    add_rank(comm, rank.comm);
    loss += rank.loss;
    skipped_steps += rank.skipped_steps;
    wire_bytes += rank.on_wire();
    times.push_back(rank.times());
  }
  return {.epoch = static_cast<std::int64_t>(tally.epoch),
          .samples = tally.samples,
          .global_batch = static_cast<std::int64_t>(tally.global_batch),
          .learning_rate = tally.learning_rate,
          .train_loss = ratio(loss.loss, loss.samples),
          .train_accuracy = ratio(static_cast<double>(loss.correct), loss.samples),
          .test_loss = ratio(result.loss, result.samples),
          .test_accuracy = ratio(static_cast<double>(result.correct), result.samples),
          .times = over_ranks(times),
          .codec_relative_error = comm.relative_error(),
          .residual_norm = comm.residual_norm(),
          .replica_hash = tally.replica_hash,
          .skipped_steps = tally.is_judged_alone ? skipped_steps : tally.skipped_steps,
          .delivered_relative_error = comm.delivered_relative_error(),
          .sample_bytes = static_cast<std::int64_t>(comm.sample_bytes),
          .saturation = comm.saturation(),
          .exchanges = tally.exchanges,
          .wire_bytes = wire_bytes};
}

// costs: of each bucket on each rank; first all buckets of rank 0, then those of rank 1, ...
std::vector<BucketRow> bucket_rows(std::size_t epoch, const std::vector<Bucket>& buckets,
                                   const std::vector<CommCost>& costs) {
  std::vector<BucketRow> rows;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    CommCost sum;
    for (std::size_t i = b; i < costs.size(); i += buckets.size()) add_rank(sum, costs[i]);
    const auto ranks = static_cast<double>(costs.size() / buckets.size());
    rows.push_back({.epoch = static_cast<std::int64_t>(epoch),
                    .bucket = static_cast<std::int64_t>(b),
                    .elements = static_cast<std::int64_t>(buckets[b].elements),
                    .sent_bytes = static_cast<std::int64_t>(sum.sent_bytes),
                    .encode_s = sum.encode_s / ranks,
                    .wire_s = sum.wire_s / ranks,
                    .decode_s = sum.decode_s / ranks,
                    .peer_wait_s = sum.peer_wait_s / ranks,
                    .relative_error = sum.relative_error(),
                    .residual_norm = sum.residual_norm(),
                    .delivered_relative_error = sum.delivered_relative_error(),
                    .saturation = sum.saturation(),
                    .residual_growth = sum.sampled.residual_growth(),
                    .residual_age = sum.sampled.residual_age()});
  }
  return rows;
}

std::vector<TensorRow> tensor_rows(const EpochTally& tally, const std::vector<Bucket>& buckets) {
  std::vector<std::int64_t> elements;
  for (const Bucket& bucket : buckets) {
    for (const TensorSlot& tensor : bucket.tensors) {
      elements.push_back(static_cast<std::int64_t>(tensor.elements()));
    }
  }
  std::vector<TensorRow> rows;
  for (const DeliveryGaps::Gap& gap : tally.gaps) {
    rows.push_back({.epoch = static_cast<std::int64_t>(tally.epoch),
                    .tensor = static_cast<std::int64_t>(gap.tensor),
                    .elements = elements.at(gap.tensor),
                    .waiting = static_cast<std::int64_t>(gap.now),
                    .longest_wait = static_cast<std::int64_t>(gap.longest)});
  }
  return rows;
}

// Converts rows of numbers to a text and back.
template <class Row>
StateText rows_text(const std::string& name, std::vector<Row>& rows) {
  return {.name = name,
          .get =
              [&rows] {
                return std::string(reinterpret_cast<const char*>(rows.data()),
                                   rows.size() * sizeof(Row));
              },
          .set =
              [&rows, name](const std::string& text) {
                if (text.size() % sizeof(Row) != 0) {
                  throw_error(ErrorKind::data,
                              "the checkpoint's entry {} has {} bytes, which is not a multiple of "
                              "{}",
                              name, text.size(), sizeof(Row));
                }
                rows.resize(text.size() / sizeof(Row));
                std::ranges::copy(std::as_bytes(std::span(text)),
                                  std::as_writable_bytes(std::span(rows)).begin());
              },
          .share = StateShare::replicated};
}

}  // namespace

EpochAccount::EpochAccount(const RunDescription& run) : run_(run) { clear_costs(); }

void EpochAccount::attach(Reducer& reducer) {
  reducer_ = &reducer;
  for (std::size_t b = 0; b < run_.buckets.size(); ++b) {
    expected_bytes_.push_back(reducer.wire_bytes(b));
  }
  reducer.run([this](Communicator& comm) {
    counted_control_bytes_ = comm.control_bytes();
    counted_wire_bytes_ = comm.sent_on_wire();
  });
}

void EpochAccount::ask_costs() {
  reducer_->ask_times();
  has_asked_ = true;
}

CommCost EpochAccount::take_asked() {
  if (!std::exchange(has_asked_, false)) return {};
  const CommTimes times = reducer_->asked_times();
  add(times);
  return times.total;
}

void EpochAccount::collect() { add(reducer_->take_times()); }

void EpochAccount::add(const CommTimes& times) {
  add_later(comm_.total, times.total);
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    add_later(comm_.buckets[b], times.buckets[b]);
  }
}

void EpochAccount::clear_costs() {
  comm_ = {};
  comm_.buckets.resize(run_.buckets.size());
}

// now: the communicator's control bytes since it was made.
void EpochAccount::count_control_bytes(std::uint64_t now) {
  control_bytes_ += now - std::exchange(counted_control_bytes_, now);
}

// now: the bytes that the connections have sent since they were opened; nothing if not measured.
void EpochAccount::count_wire_bytes(std::optional<double> now) {
  if (now) wire_bytes_ += *now - counted_wire_bytes_.value_or(0.0);
  counted_wire_bytes_ = now;
}

std::optional<EpochRows> EpochAccount::end_epoch(const EpochTally& tally, double epoch_s,
                                                 const EvaluationResult& result, double eval_s) {
  RankRecord mine = {.loop = tally.times.as_parts_of(epoch_s, comm_.total.comm_s),
                     .epoch_s = epoch_s,
                     .eval_s = eval_s,
                     .checkpoint_s = tally.checkpoint_s,
                     .comm = comm_.total,
                     .loss = tally.loss,
                     .control_bytes = 0,
                     .skipped_steps = tally.skipped_steps,
                     .own_skipped_steps = tally.own_skipped_steps,
                     .wire_bytes = 0.0,
                     .is_wire_measured = false};
  std::vector<RankRecord> ranks;
  std::vector<CommCost> buckets;
  reducer_->run([&](Communicator& comm) {
    // `now` includes the bytes of the two gatherings below. The bytes of the sample for the sums'
    // error are subtracted, because they have their own column.
    const std::uint64_t now = comm.control_bytes() + comm.gather_cost(sizeof(RankRecord)) +
                              comm.gather_cost(comm_.buckets.size() * sizeof(CommCost));
    count_control_bytes(now);
    count_wire_bytes(comm.sent_on_wire());
    mine.wire_bytes = std::exchange(wire_bytes_, 0.0);
    mine.is_wire_measured = counted_wire_bytes_.has_value();
    mine.control_bytes = std::exchange(control_bytes_, 0) - mine.comm.sample_bytes;
    ranks = comm.gather_rows(std::span<const RankRecord>(&mine, 1));
    buckets = comm.gather_rows(std::span<const CommCost>(comm_.buckets));
  });
  clear_costs();
  if (run_.comm->rank() != 0) return std::nullopt;
  EpochRows rows = {.epoch = epoch_row(tally, result, ranks),
                    .ranks = {},
                    .buckets = bucket_rows(tally.epoch, run_.buckets, buckets),
                    .codecs = {},
                    .tensors = tensor_rows(tally, run_.buckets),
                    .own_skipped_steps = {},
                    .is_wire_measured = std::ranges::all_of(
                        ranks, [](const RankRecord& rank) { return rank.is_wire_measured; })};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    rows.ranks.push_back({.epoch = rows.epoch.epoch,
                          .rank = static_cast<std::int64_t>(r),
                          .times = ranks[r].times(),
                          .wire_bytes = ranks[r].on_wire()});
    rows.own_skipped_steps.push_back(ranks[r].own_skipped_steps);
  }
  for (const Bucket& bucket : reducer_->buckets()) rows.codecs.push_back(bucket.codec.text());
  epochs_.push_back(rows.epoch);
  epoch_steps_.push_back(static_cast<double>(tally.steps_of_epoch));
  return rows;
}

void EpochAccount::share_epoch() {
  if (!run_.options->has_checkpoints()) return;
  const bool is_mine = run_.comm->rank() == 0;
  struct Kept {
    EpochRow row;
    double steps = 0.0;
  } kept;
  if (is_mine) kept = {.row = epochs_.back(), .steps = epoch_steps_.back()};
  std::string bytes(reinterpret_cast<const char*>(&kept), sizeof(kept));
  reducer_->run([&](Communicator& comm) { comm.broadcast(bytes); });
  if (is_mine) return;
  std::memcpy(&kept, bytes.data(), sizeof(kept));
  epochs_.push_back(kept.row);
  epoch_steps_.push_back(kept.steps);
}

void EpochAccount::list_state(StateVisitor& visitor) {
  reducer_->run([this](Communicator& comm) {
    count_control_bytes(comm.control_bytes());
    count_wire_bytes(comm.sent_on_wire());
  });
  visitor.value("epoch/control_bytes", control_bytes_, StateShare::own);
  visitor.value("epoch/wire_bytes", wire_bytes_, StateShare::own);
  visitor.object("epoch/comm", comm_.total, add_bytes);
  for (std::size_t b = 0; b < comm_.buckets.size(); ++b) {
    visitor.object(fmt::format("epoch/comm/bucket{}", b), comm_.buckets[b], add_bytes);
  }
  visitor.text(rows_text("epochs/rows", epochs_));
  visitor.text(rows_text("epochs/steps", epoch_steps_));
}

double EpochAccount::fp32_bytes(double steps) const {
  const auto gradient = 4.0 * static_cast<double>(run_.network->parameters().size());
  return 2.0 * (run_.comm->size() - 1.0) * gradient * steps;
}

std::vector<double> EpochAccount::fp32_bytes() const {
  std::vector<double> bytes;
  for (const double steps : epoch_steps_) bytes.push_back(fp32_bytes(steps));
  return bytes;
}

EpochEnd EpochAccount::last_epoch(const EpochTally& tally, std::uint64_t global_step) const {
  const EpochRow& row = epochs_.back();
  return {.row = row,
          .global_step = global_step,
          .epochs = static_cast<std::size_t>(run_.options->epochs),
          .steps = epoch_steps_.back(),
          .fp32_bytes = fp32_bytes(epoch_steps_.back()),
          .images_per_s = per_second(static_cast<double>(row.samples), row.times.epoch_s),
          .bits_per_value = tally.bits_per_value()};
}

StepProgress EpochAccount::live_step(const EpochTally& tally) const {
  const Options& o = *run_.options;
  const double elapsed_s = tally.times.step();
  const auto done = static_cast<double>(tally.steps);
  const double step_s = per_second(elapsed_s, done);
  // Assumes that an evaluation will take as long as the last one.
  const double eval_s = epochs_.empty() ? 0.0 : epochs_.back().times.eval_s;
  const auto epochs = static_cast<std::size_t>(o.epochs);
  const double epochs_left = static_cast<double>(epochs - tally.epoch);
  const double left_s = step_s * (static_cast<double>(tally.steps_of_epoch) * epochs_left - done) +
                        eval_s * epochs_left;
  // Bytes that this rank sends in a step: the mean of the last epoch or, in the first epoch, the
  // bytes that the plan gives.
  double sent = 0;
  if (!epochs_.empty()) {
    sent = per_second(static_cast<double>(epochs_.back().times.sent_bytes),
                      epoch_steps_.back() * run_.comm->size());
  } else if (o.compress_warmup > 0) {
    sent = std::numeric_limits<double>::quiet_NaN();
  } else {
    for (const auto& bytes : expected_bytes_) {
      sent += bytes ? static_cast<double>(*bytes) : std::numeric_limits<double>::quiet_NaN();
    }
    sent *= per_second(static_cast<double>(tally.exchanges), done);
  }
  return {.epoch = tally.epoch + 1,
          .epochs = epochs,
          .step = tally.steps,
          .steps = tally.steps_of_epoch,
          .loss = per_second(tally.loss.loss, static_cast<double>(tally.loss.samples)),
          .images_per_s = per_second(static_cast<double>(tally.samples), elapsed_s),
          .sent_bytes_per_s = per_second(sent * done, elapsed_s),
          .left_s = left_s};
}

}  // namespace dp
