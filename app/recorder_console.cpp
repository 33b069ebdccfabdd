// What the recorder prints on the console: start, steps, epochs, end.
#include <algorithm>
#include <utility>

#include "app/recipes.hpp"
#include "app/recorder.hpp"
#include "app/round_schedule.hpp"
#include "app/stop_notice.hpp"
#include "comm/network_interface.hpp"
#include "io/text_table.hpp"

namespace dp {

namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// "node1 x 2, node2": hosts with their number of ranks.
std::string host_summary(const std::vector<std::string>& hosts) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (std::find(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(i), hosts[i]) !=
        hosts.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    const auto count = std::count(hosts.begin(), hosts.end(), hosts[i]);
    parts.push_back(count == 1 ? hosts[i] : fmt::format("{} x {}", hosts[i], count));
  }
  return join(parts);
}

std::string value_of(const Options& options, std::string_view name) {
  for (const auto& [key, value] : options.resolved()) {
    if (key == name) return value;
  }
  return {};
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0.0; }

}  // namespace

void Recorder::print_start() {
  if (!is_speaker()) return;
  for (const std::string& warning : run_.data->warnings) console_.warn("dptrain: " + warning);
  const Options& o = *run_.options;
  const RoundSchedule rounds = parse_round_schedule("--sync-every", o.sync_every);
  const std::size_t parameters = run_.network->parameters().size();
  const auto frozen = static_cast<std::int64_t>(run_.network->parameters().frozen_size());
  const std::string codec = o.compress == "none" ? "not compressed" : "compressed by " + o.compress;
  const std::string gradients = run_.comm->size() == 1 ? "no gradients to exchange"
                                : !o.exchange          ? "gradients not exchanged (--exchange off)"
                                : rounds.has_rounds()
                                    ? fmt::format("exchange {}, {}", rounds.text(), codec)
                                    : "gradients " + codec;
  if (o.epochs == 0) {
    print_start_of_evaluation();
    return;
  }
  console_.print(fmt::format(
      "dptrain {}: {} on {} ({} training images), {} rank{}, {}.{}", DP_VERSION, o.model,
      value_of(o, "dataset"), format_count(static_cast<std::int64_t>(run_.data->train->count())),
      run_.comm->size(), run_.comm->size() == 1 ? "" : "s", gradients,
      o.is_synthetic()
          ? "\nThese images are drawn by the program. For real ones: experiments/get_cifar.sh "
            "cifar10 data, then --data-dir data."
          : ""));

  std::vector<std::pair<std::string, std::string>> rows = {
      {"hosts", host_summary(run_.comm->hosts())},
      {"devices", join(devices_)},
      {"cores", fmt::format("rank 0 may run on cores {}; each rank of this host has {:.3g} of them",
                            run_.share.cores, run_.share.cores_per_rank)},
      {"parameters",
       fmt::format("{} ({} of gradient){}", format_count(static_cast<std::int64_t>(parameters)),
                   format_bytes(4.0 * static_cast<double>(parameters)),
                   frozen == 0 ? "" : fmt::format(", and {} frozen", format_count(frozen)))},
      {"steps",
       fmt::format("{} per epoch, global batch {}{}", run_.steps_per_epoch, run_.global_batch,
                   o.accumulate > 1 ? fmt::format(" (in {} parts per rank)", o.accumulate) : "")},
      {"activations", format_bytes(static_cast<double>(run_.network->arena_bytes()))}};
  if (const Recipe* recipe = find_recipe(o.recipe)) {
    rows.insert(rows.begin(), {"recipe", fmt::format("{}: {}", recipe->name, recipe->text)});
  }
  if (!run_.data->about.empty()) rows.emplace_back("images", run_.data->about);
  if (!run_.why_no_gpu.empty()) rows.insert(rows.begin() + 2, {"no GPU", run_.why_no_gpu});
  if (run_.comm->size() > 1) {
    const bool is_one_host = run_.comm->local_size() == run_.comm->size();
    std::string network =
        is_one_host ? "the memory of one host" : describe_network(format_bit_rate);
    if (run_.link.bytes_per_s > 0) {
      network += fmt::format("; measured: {}, {}", format_bit_rate(8 * run_.link.bytes_per_s),
                             format_seconds(run_.link.latency_s));
      if (!run_.link.is_reliable() && !is_one_host) {
        network += fmt::format(" (the rate is uncertain by {:.0f} %: it did not become steady)",
                               100 * run_.link.uncertainty);
      }
    }
    rows.emplace_back("network", network);
    rows.emplace_back("buckets", describe_buckets());
  }
  if (!run_.exchange_path.empty()) {
    rows.emplace_back("exchange", run_.exchange_path == "device"
                                      ? "encoded and added on the GPU"
                                      : "encoded and added by the host's processor");
  }
  if (rounds.has_rounds()) {
    rows.emplace_back(
        "rounds", fmt::format("exchange {}, and at the end of an epoch; outer learning rate {:g}, "
                              "momentum {:g}",
                              rounds.text(), o.outer_lr, o.outer_momentum));
  }
  console_.settings("this run", rows);
  std::vector<std::pair<std::string, std::string>> changed;
  for (const auto& [name, value] : o.changed()) {
    const bool is_said = name == "model" || name == "dataset";
    if (!is_said && !value.empty()) changed.emplace_back("--" + name, value);
  }
  if (!changed.empty()) {
    console_.settings("options that are not at their defaults (--print-config shows all)", changed);
  }

  if (!run_.buckets.empty() && run_.comm->size() > 1) {
    TextTable table;
    table.header = {"bucket",
                    "elements",
                    "codec",
                    "topology",
                    rounds.has_rounds() ? "rank 0 sends an exchange" : "rank 0 sends a step",
                    "note"};
    table.align = {Align::right, Align::right, Align::left, Align::left, Align::right, Align::left};
    for (std::size_t b = 0; b < run_.buckets.size(); ++b) {
      const Bucket& bucket = run_.buckets[b];
      table.rows.push_back(
          {std::to_string(b), format_count(static_cast<std::int64_t>(bucket.elements)),
           bucket.codec, topology_of(bucket),
           expected_bytes_[b] ? format_bytes(static_cast<double>(*expected_bytes_[b])) : "varies",
           note_of(bucket)});
    }
    console_.table("buckets, in the order in which they are sent", table);
  }
}

void Recorder::print_start_of_evaluation() {
  const Options& o = *run_.options;
  console_.print(fmt::format(
      "dptrain {}: evaluates {} with the weights of {} on {} ({} test images), {} rank{}.",
      DP_VERSION, o.model, o.init, value_of(o, "dataset"),
      format_count(static_cast<std::int64_t>(run_.data->test->count())), run_.comm->size(),
      run_.comm->size() == 1 ? "" : "s"));
}

std::string Recorder::describe_buckets() const {
  if (run_.buckets.empty()) return "none, since every rank trains its own model";
  std::size_t largest = 0;
  for (const Bucket& bucket : run_.buckets) largest = std::max(largest, bucket.elements);
  return fmt::format("{}, the largest with {} of fp32 gradient (a bucket is closed at {})",
                     run_.buckets.size(),
                     format_bytes(static_cast<double>(largest * sizeof(float))),
                     format_bytes(static_cast<double>(run_.bucket_bytes)));
}

// Why a bucket is not compressed, or not compressed from the start.
std::string Recorder::note_of(const Bucket& bucket) const {
  const std::int64_t epochs = run_.options->compress_warmup;
  if (bucket.codec == "none" || epochs == 0) return std::string(bucket.why);
  const bool has_ladder = parse_codec_spec(bucket.codec).settings.contains("ratio");
  return fmt::format("after {} epoch{} {}", epochs, epochs == 1 ? "" : "s",
                     has_ladder ? "at 25 %, 6.25 %, ..." : "in fp32");
}

void Recorder::say(const std::string& line) {
  if (is_speaker()) console_.print(line);
}

void Recorder::record_test_augmentation(const EvaluationResult& result) {
  if (!is_speaker()) return;
  const double loss = result.mean_loss(), accuracy = result.accuracy();
  const char* kind =
      run_.options->test_augment == Options::TestAugment::mirror ? "mirror" : "shift";
  const std::string line =
      fmt::format("with test-time augmentation ({}): test loss {:.4f}  accuracy {:.2f} %", kind,
                  loss, 100 * accuracy);
  if (run_.options->epochs == 0) {
    console_.answer(line);
  } else {
    console_.print(line);
  }
  if (!log_) return;
  log_->set_attribute("/", "test_augment", std::string(kind));
  log_->set_attribute("/", "augmented_test_loss", loss);
  log_->set_attribute("/", "augmented_test_accuracy", accuracy);
  save_log();
}

void Recorder::say_evaluation(const EvaluationResult& result) {
  if (!is_speaker()) return;
  console_.answer(fmt::format("test loss {:.4f}  accuracy {:.2f} %  ({} images)",
                              result.mean_loss(), 100 * result.accuracy(),
                              format_count(result.samples)));
}

void Recorder::print_step(const EpochTally& tally) {
  if (console_.mode() != ConsoleMode::live) return;
  const Options& o = *run_.options;
  const double elapsed_s = tally.times.step();
  const auto done = static_cast<double>(tally.steps);
  const double step_s = per_second(elapsed_s, done);
  // An evaluation is expected to take as long as the last one.
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
  console_.step({.epoch = tally.epoch + 1,
                 .epochs = epochs,
                 .step = tally.steps,
                 .steps = tally.steps_of_epoch,
                 .loss = per_second(tally.loss.loss, static_cast<double>(tally.loss.samples)),
                 .images_per_s = per_second(static_cast<double>(tally.samples), elapsed_s),
                 .sent_bytes_per_s = per_second(sent * done, elapsed_s),
                 .left_s = left_s});
}

void Recorder::print_epoch(const EpochRow& row, const EpochTally& tally) {
  note_loss(row);
  console_.epoch({.epoch = static_cast<std::size_t>(row.epoch) + 1,
                  .epochs = static_cast<std::size_t>(run_.options->epochs),
                  .train_loss = row.train_loss,
                  .train_accuracy = row.train_accuracy,
                  .test_loss = row.test_loss,
                  .test_accuracy = row.test_accuracy,
                  .epoch_s = row.times.epoch_s,
                  .images_per_s = per_second(static_cast<double>(row.samples), row.times.epoch_s),
                  .sent_bytes = static_cast<double>(row.times.sent_bytes),
                  .exposed_comm_s = row.times.exposed_comm_s,
                  .bits_per_value = tally.bits_per_value()});
}

void Recorder::print_end() {
  if (epochs_.empty()) return print_place_of_log();  // nothing was trained
  TextTable table;
  table.header = {"epoch", "time",    "compute",    "exposed",       "data",  "other",      "comm",
                  "sent",  "of fp32", "train loss", "test accuracy", "error", "sum's error"};
  const auto gradient = 4.0 * static_cast<double>(run_.network->parameters().size());
  const double ranks = run_.comm->size();
  for (std::size_t e = 0; e < epochs_.size(); ++e) {
    const EpochRow& row = epochs_[e];
    // What an uncompressed ring would send in this epoch, without headers.
    const double fp32 = 2.0 * (ranks - 1.0) * gradient * epoch_steps_[e];
    const auto sent = static_cast<double>(row.times.sent_bytes);
    table.rows.push_back(
        {std::to_string(row.epoch + 1), format_seconds(row.times.epoch_s),
         format_seconds(row.times.compute_s), format_seconds(row.times.exposed_comm_s),
         format_seconds(row.times.data_s), format_seconds(row.times.other_s),
         format_seconds(row.times.comm_s), format_bytes(sent),
         fp32 > 0 ? format_percent(sent / fp32) : "-", format_number(row.train_loss, 3),
         format_percent(row.test_accuracy), format_percent(row.codec_relative_error),
         format_percent(row.delivered_relative_error)});
  }
  console_.table("what each epoch cost (mean over ranks; bytes: sum over ranks)", table);
  const bool has_statistics = std::ranges::any_of(
      epochs_, [](const EpochRow& row) { return row.times.statistics_bytes > 0; });
  if (has_statistics) {
    double statistics_s = 0, bytes = 0;
    for (const EpochRow& row : epochs_) {
      statistics_s += row.times.statistics_s;
      bytes += static_cast<double>(row.times.statistics_bytes);
    }
    const auto count = static_cast<double>(epochs_.size());
    console_.print(fmt::format(
        "Statistics of all ranks for batch normalisation: {} an epoch, which are not in \"sent\", "
        "and {} of \"exposed\".",
        format_bytes(bytes / count), format_seconds(statistics_s / count)));
  }
  if (!run_.buckets.empty() && run_.comm->size() > 1) {
    console_.print(
        "time = compute + exposed + data + other; evaluation is not in it. comm: a bucket was in\n"
        "flight; exposed: training stood still for it; data: training waited for images.\n"
        "of fp32: bytes sent, in per cent of what a ring without compression sends.\n"
        "error: the part of the gradient that encoders left for later steps. sum's error: how far\n"
        "the delivered sum of one step was from the exact one.");
  }
  print_place_of_log();
}

void Recorder::print_place_of_log() {
  if (log_ && !missing_.contains(kLogName)) {
    console_.print(fmt::format("The log is {}", log_->path()));
  }
}

}  // namespace dp
