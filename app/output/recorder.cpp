#include "app/output/recorder.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "app/process/rank_main.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/lap_clock.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

namespace {

// The position of a text in a list. Adds a new text to it.
std::size_t index_in(std::vector<std::string>& list, const std::string& text) {
  const auto it = std::find(list.begin(), list.end(), text);
  if (it != list.end()) return static_cast<std::size_t>(it - list.begin());
  list.push_back(text);
  return list.size() - 1;
}

void add_cost(CommCost& sum, const CommCost& more) {
  sum.comm_s += more.comm_s;
  sum.encode_s += more.encode_s;
  sum.decode_s += more.decode_s;
  sum.peer_wait_s += more.peer_wait_s;
  sum.wire_s += more.wire_s;
  sum.sent_bytes += more.sent_bytes;
  sum.received_bytes += more.received_bytes;
  sum.sampled += more.sampled;
  sum.delivered_error_squares += more.delivered_error_squares;
  sum.delivered_value_squares += more.delivered_value_squares;
  sum.sample_bytes += more.sample_bytes;
  sum.gathered.gather_s += more.gathered.gather_s;
  sum.gathered.gatherings += more.gathered.gatherings;
  sum.gathered.sent_bytes += more.gathered.sent_bytes;
}

// Adds costs of one step after the other; the residual's norm is the last one.
void add_later(CommCost& sum, const CommCost& more) {
  add_cost(sum, more);
  sum.residual_squares = more.residual_squares;
}

// Adds costs over ranks; squares of residuals add up.
void add_rank(CommCost& sum, const CommCost& more) {
  add_cost(sum, more);
  sum.residual_squares += more.residual_squares;
}

double fraction(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : kNotMeasured;
}

}  // namespace

Recorder::Recorder(RunDescription run)
    : run_(std::move(run)), limits_(run_.options->compress.limits) {
  // Lists that rows refer to by index. A log that goes on keeps its lists and adds to them.
  take_earlier_lists();
  const std::vector<std::string> all = run_.comm->gather(run_.device->description());
  for (const std::string& device : all) device_of_rank_.push_back(index_in(devices_, device));
  for (const Bucket& bucket : run_.buckets) {
    index_in(codec_names_, bucket.codec.text());
    index_in(topology_names_, run_.topology_of(bucket));
  }
  epoch_comm_.buckets.resize(run_.buckets.size());
  together(*run_.comm, kDptrainNames, [&] {
    if (!is_speaker()) return;
    if (run_.options->log != "none") open_log();
    open_events();
  });
}

void Recorder::attach(Reducer& reducer) {
  reducer_ = &reducer;
  for (std::size_t b = 0; b < run_.buckets.size(); ++b) {
    expected_bytes_.push_back(reducer.wire_bytes(b));
  }
  if (log_ && !topology_names_.empty()) {
    std::vector<double> hops;
    for (const std::string& name : topology_names_) {
      const std::size_t of_one = find_topology(name).hops(reducer.hosts().size(), reducer.hosts());
      hops.push_back(static_cast<double>(of_one));
    }
    log_->set_attribute("/", "topology_hops", std::span<const double>(hops));
    save_log();
  }
  counted_control_bytes_ = reducer.run([](Communicator& comm) { return comm.control_bytes(); });
}

void Recorder::collect_comm() {
  end_step_row();
  add_comm(reducer_->take_times());
}

void Recorder::add_comm(const CommTimes& times) {
  add_later(epoch_comm_.total, times.total);
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    add_later(epoch_comm_.buckets[b], times.buckets[b]);
  }
}

void Recorder::record_step(const EpochTally& tally, const LoopTimes& times,
                           std::uint64_t global_step) {
  end_step_row();
  steps_done_ = global_step;
  const bool is_logged = wants_step(global_step), is_before = wants_step(global_step + 1);
  // Only for steps that are logged or come before one, because it is work for the reducer's thread.
  if ((is_logged || is_before) && !tally.is_under_way) {
    reducer_->ask_times();
    has_asked_ = true;
  }
  if (is_logged) {
    step_sums_.push_back(tally.step_loss.loss);
    step_sums_.push_back(static_cast<double>(tally.step_loss.samples));
    begun_times_ = times;
    begun_row_ = {.step = static_cast<std::int64_t>(global_step),
                  .epoch = static_cast<std::int64_t>(tally.epoch),
                  .train_loss = 0.0,  // of all ranks: gather_steps
                  .step_s = times.step(),
                  .learning_rate = tally.learning_rate,
                  .planned_bits = tally.rate.planned_bits,
                  .partial_bits = tally.rate.bits[0],
                  .total_bits = tally.rate.bits[1],
                  .partial_step = tally.rate.next_steps[0],
                  .total_step = tally.rate.next_steps[1],
                  .link_bytes_per_s = tally.rate.link_bytes_per_s,
                  .hidden_bits = tally.rate.hidden_bits,
                  .relative_error = tally.rate.relative_error,
                  .residual_growth = tally.rate.residual_growth,
                  .guard_factor = tally.rate.guard_factor,
                  .exchanged = tally.has_exchanged && run_.comm->size() > 1 ? 1 : 0,
                  .wished_bits = tally.rate.wished_bits,
                  .binding_bucket = tally.rate.binding_number()};
  }
  const std::size_t rows = step_rows_.size() + (begun_row_ ? 1 : 0);
  if (!tally.is_under_way && rows >= rows_at_once_) gather_steps();
  if (is_speaker()) {
    note_rate(tally);
    note_guard(tally);
    tell_live_step(tally);
  }
}

void Recorder::end_step_row() {
  CommCost comm;
  if (std::exchange(has_asked_, false)) {
    const CommTimes times = reducer_->asked_times();
    add_comm(times);
    comm = times.total;
  }
  if (!begun_row_) return;
  const LoopTimes parts = begun_times_.as_parts_of(begun_times_.step(), comm.comm_s);
  StepRow& row = step_rows_.emplace_back(*std::exchange(begun_row_, std::nullopt));
  row.compute_s = parts.compute();
  row.comm_s = comm.comm_s;
  row.exposed_comm_s = parts.exposed_comm;
  row.data_s = parts.data;
  row.forward_s = parts.forward;
  row.backward_s = parts.backward;
  row.optimizer_s = parts.optimizer;
  row.other_s = parts.other;
  row.encode_s = comm.encode_s;
  row.wire_s = comm.wire_s;
  row.decode_s = comm.decode_s;
  row.peer_wait_s = comm.peer_wait_s;
  row.sent_bytes = static_cast<std::int64_t>(comm.sent_bytes);
  row.received_bytes = static_cast<std::int64_t>(comm.received_bytes);
}

void Recorder::gather_steps() {
  end_step_row();
  if (step_rows_.empty()) return;
  // The next rows are gathered a second later, or so much later that this takes a hundredth of the
  // time. All ranks find the same number of rows, since all have the same sums. One rank alone has
  // nothing to wait for.
  constexpr double kEvery_s = 1.0, kShare = 0.01;
  constexpr double kMostRows = 1000.0;
  double time_s = 0.0;
  for (const StepRow& row : step_rows_) {
    time_s += row.step_s * static_cast<double>(run_.options->log_steps);
  }
  step_sums_.insert(step_sums_.end(), {time_s, gathering_s_});
  LapClock clock;
  reducer_->run([&](Communicator& comm) { comm.all_sum(step_sums_); });
  gathering_s_ = clock.lap();
  const std::size_t rows = step_rows_.size();
  if (const auto ranks = static_cast<double>(run_.comm->size()); ranks > 1.0) {
    const double row_s = step_sums_[2 * rows] / (static_cast<double>(rows) * ranks);
    const double every_s = std::max(kEvery_s, step_sums_[2 * rows + 1] / (kShare * ranks));
    rows_at_once_ = static_cast<std::size_t>(
        std::clamp(every_s / std::max(row_s, every_s / kMostRows), 1.0, kMostRows));
  }
  for (std::size_t i = 0; is_speaker() && i < step_rows_.size(); ++i) {
    step_rows_[i].train_loss = step_sums_[2 * i] / step_sums_[2 * i + 1];
    run_.progress->logged_step(step_rows_[i]);
    add_events(step_rows_[i]);
    if (log_) log_->append(step_rows_[i]);
  }
  if (log_ && log_->is_save_due()) save_log();
  step_rows_.clear();
  step_sums_.clear();
}

// `now`: what the communicator has counted since it was made.
void Recorder::count_control_bytes(std::uint64_t now) {
  control_bytes_ += now - std::exchange(counted_control_bytes_, now);
}

void Recorder::record_epoch(const EpochTally& tally, double epoch_s, const EvaluationResult& result,
                            double eval_s) {
  gather_steps();
  collect_comm();
  RankRecord mine = {.loop = tally.times.as_parts_of(epoch_s, epoch_comm_.total.comm_s),
                     .epoch_s = epoch_s,
                     .eval_s = eval_s,
                     .checkpoint_s = tally.checkpoint_s,
                     .comm = epoch_comm_.total,
                     .loss = tally.loss,
                     .control_bytes = 0,
                     .skipped_steps = tally.skipped_steps,
                     .own_skipped_steps = tally.own_skipped_steps};
  const std::vector<CommCost> my_buckets = epoch_comm_.buckets;
  std::vector<RankRecord> ranks;
  std::vector<CommCost> buckets;
  reducer_->run([&](Communicator& comm) {
    // Includes what the two calls below will send. The sample of the sums' error has its own
    // column.
    const std::uint64_t now = comm.control_bytes() + comm.gather_cost(sizeof(RankRecord)) +
                              comm.gather_cost(my_buckets.size() * sizeof(CommCost));
    count_control_bytes(now);
    mine.control_bytes = std::exchange(control_bytes_, 0) - mine.comm.sample_bytes;
    ranks = comm.gather_rows(std::span<const RankRecord>(&mine, 1));
    buckets = comm.gather_rows(std::span<const CommCost>(my_buckets));
  });
  epoch_comm_ = {};
  epoch_comm_.buckets.resize(run_.buckets.size());
  if (is_speaker()) write_epoch(tally, result, ranks, buckets);
  share_epoch();
}

TimesAndBytes Recorder::times_of(const RankRecord& r) {
  return {.epoch_s = r.epoch_s,
          .data_s = r.loop.data,
          .forward_s = r.loop.forward,
          .backward_s = r.loop.backward,
          .optimizer_s = r.loop.optimizer,
          .compute_s = r.loop.compute(),
          .encode_s = r.comm.encode_s,
          .wire_s = r.comm.wire_s,
          .decode_s = r.comm.decode_s,
          .peer_wait_s = r.comm.peer_wait_s,
          .comm_s = r.comm.comm_s,
          .exposed_comm_s = r.loop.exposed_comm,
          .other_s = r.loop.other,
          .eval_s = r.eval_s,
          .checkpoint_s = r.checkpoint_s,
          .sent_bytes = static_cast<std::int64_t>(r.comm.sent_bytes),
          .received_bytes = static_cast<std::int64_t>(r.comm.received_bytes),
          .control_bytes = static_cast<std::int64_t>(r.control_bytes),
          .statistics_s = r.loop.statistics,
          .statistics_bytes = static_cast<std::int64_t>(r.comm.gathered.sent_bytes)};
}

void Recorder::write_epoch(const EpochTally& tally, const EvaluationResult& result,
                           const std::vector<RankRecord>& ranks,
                           const std::vector<CommCost>& buckets) {
  // Times are means over ranks; bytes and losses are sums.
  LoopTimes loop;
  CommCost comm;
  LossSums loss;
  double epoch_s = 0, eval_s = 0, checkpoint_s = 0;
  std::uint64_t control_bytes = 0;
  std::int64_t skipped_steps = 0;
  for (const RankRecord& r : ranks) {
    skipped_steps += r.skipped_steps;
    loop += r.loop;
    add_rank(comm, r.comm);
    loss += r.loss;
    epoch_s += r.epoch_s;
    eval_s += r.eval_s;
    checkpoint_s += r.checkpoint_s;
    control_bytes += r.control_bytes;
  }
  TimesAndBytes mean = times_of({.loop = loop,
                                 .epoch_s = epoch_s,
                                 .eval_s = eval_s,
                                 .checkpoint_s = checkpoint_s,
                                 .comm = comm,
                                 .loss = loss,
                                 .control_bytes = control_bytes,
                                 .skipped_steps = skipped_steps,
                                 .own_skipped_steps = 0});
  const auto count = static_cast<double>(ranks.size());
  for (double TimesAndBytes::*time :
       {&TimesAndBytes::epoch_s, &TimesAndBytes::data_s, &TimesAndBytes::forward_s,
        &TimesAndBytes::backward_s, &TimesAndBytes::optimizer_s, &TimesAndBytes::compute_s,
        &TimesAndBytes::encode_s, &TimesAndBytes::wire_s, &TimesAndBytes::decode_s,
        &TimesAndBytes::peer_wait_s, &TimesAndBytes::comm_s, &TimesAndBytes::exposed_comm_s,
        &TimesAndBytes::other_s, &TimesAndBytes::eval_s, &TimesAndBytes::checkpoint_s,
        &TimesAndBytes::statistics_s}) {
    mean.*time /= count;
  }
  const auto epoch = static_cast<std::int64_t>(tally.epoch);
  const EpochRow row = {
      .epoch = epoch,
      .samples = tally.samples,
      .global_batch = static_cast<std::int64_t>(tally.global_batch),
      .learning_rate = tally.learning_rate,
      .train_loss = loss.samples > 0 ? loss.loss / static_cast<double>(loss.samples) : kNotMeasured,
      .train_accuracy = fraction(loss.correct, loss.samples),
      .test_loss =
          result.samples > 0 ? result.loss / static_cast<double>(result.samples) : kNotMeasured,
      .test_accuracy = fraction(result.correct, result.samples),
      .times = mean,
      .codec_relative_error = comm.relative_error(),
      .residual_norm = comm.residual_norm(),
      .replica_hash = tally.replica_hash,
      .skipped_steps = tally.is_judged_alone ? skipped_steps : tally.skipped_steps,
      .delivered_relative_error = comm.delivered_relative_error(),
      .sample_bytes = static_cast<std::int64_t>(comm.sample_bytes),
      .saturation = comm.saturation(),
      .exchanges = tally.exchanges};
  epochs_.push_back(row);
  epoch_steps_.push_back(static_cast<double>(tally.steps_of_epoch));
  if (log_) {
    log_->append(row);
    std::vector<RankRow> rows;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      rows.push_back({.epoch = epoch,
                      .rank = static_cast<std::int64_t>(r),
                      .host = static_cast<std::int64_t>(first_host_ + r),
                      .device = static_cast<std::int64_t>(device_of_rank_[r]),
                      .times = times_of(ranks[r])});
    }
    log_->append(std::span<const RankRow>(rows));
    write_buckets(epoch, buckets);
    write_tensors(tally);
    save_log();
  }
  tell_epoch(row, tally);
  note_skipped_by_others(tally, ranks);
}

void Recorder::write_buckets(std::int64_t epoch, const std::vector<CommCost>& of_all_ranks) {
  const std::size_t ranks = of_all_ranks.size() / std::max<std::size_t>(run_.buckets.size(), 1);
  const auto count = static_cast<double>(ranks);
  const std::size_t names = codec_names_.size();
  std::vector<BucketRow> rows;
  for (std::size_t b = 0; b < run_.buckets.size(); ++b) {
    CommCost sum;
    for (std::size_t r = 0; r < ranks; ++r)
      add_rank(sum, of_all_ranks[r * run_.buckets.size() + b]);
    const Bucket& current = reducer_->buckets()[b];
    rows.push_back(
        {.epoch = epoch,
         .bucket = static_cast<std::int64_t>(b),
         .elements = static_cast<std::int64_t>(run_.buckets[b].elements),
         .codec = static_cast<std::int64_t>(index_in(codec_names_, current.codec.text())),
         .topology = static_cast<std::int64_t>(
             index_in(topology_names_, run_.topology_of(run_.buckets[b]))),
         .sent_bytes = static_cast<std::int64_t>(sum.sent_bytes),
         .encode_s = sum.encode_s / count,
         .wire_s = sum.wire_s / count,
         .decode_s = sum.decode_s / count,
         .peer_wait_s = sum.peer_wait_s / count,
         .relative_error = sum.relative_error(),
         .residual_norm = sum.residual_norm(),
         .delivered_relative_error = sum.delivered_relative_error(),
         .saturation = sum.saturation(),
         .residual_growth = sum.sampled.residual_growth(),
         .residual_age = sum.sampled.residual_age()});
  }
  // A warm-up has its own codecs.
  if (codec_names_.size() > names) log_->set_list("codec_names", codec_names_);
  log_->append(std::span<const BucketRow>(rows));
}

void Recorder::finish(bool is_complete) {
  if (!is_speaker()) return;
  if (log_) save_log(is_complete);
  if (events_) save_events();
  tell_end();
}

}  // namespace dp
