#include "app/output/progress_text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "app/options/recipes.hpp"
#include "app/output/gpu_notes.hpp"
#include "app/output/run_description.hpp"
#include "comm/mpi/network_interface.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "io/files/shipped_script.hpp"
#include "io/files/text_table.hpp"

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

// "28 % 36 % 36 % 0 % of each bucket, by the speed of the ranks' links"
std::string describe_owners(const RunDescription& run) {
  return fmt::format("{} of each bucket, by the speed of the ranks' links",
                     owner_percentages(run.owner_weights));
}

std::string describe_buckets(const RunDescription& run) {
  if (run.buckets.empty()) return "none, because every rank trains its own model";
  std::size_t largest = 0;
  for (const Bucket& bucket : run.buckets) largest = std::max(largest, bucket.elements);
  return fmt::format(
      "{}, the largest with {} of fp32 gradient (a bucket is closed when it reaches {})",
      run.buckets.size(), format_bytes(static_cast<double>(largest * sizeof(float))),
      format_bytes(static_cast<double>(run.bucket_bytes)));
}

GpuFacts gpu_facts(const RunDescription& run) {
  const Options& o = *run.options;
  const bool is_adam =
      o.optimizer == Options::Optimizer::adam || o.optimizer == Options::Optimizer::adamw;
  GpuFacts facts = {.is_fp32 = o.precision == Options::Precision::fp32,
                    .exchange_path = run.exchange_path,
                    .gradient_bytes = static_cast<double>(sizeof(float)) *
                                      static_cast<double>(run.network->parameters().size()),
                    .keeps_velocities_off =
                        is_adam && o.compress.with_velocities(true).codec != o.compress.codec &&
                        run.only_cpus_send_velocities,
                    .ranks_on_gpu = run.ranks_on_gpu,
                    .has_mps = has_mps()};
  for (const Bucket& bucket : run.buckets) {
    facts.codecs.push_back(bucket.codec);
    if (is_adam && bucket.velocity != Bucket::Velocity::off) facts.sends_adams_steps = true;
  }
  return facts;
}

// Why a bucket is not compressed, or not compressed from the start.
std::string note_of(const RunDescription& run, const Bucket& bucket) {
  const std::int64_t epochs = run.options->compress_warmup;
  if (bucket.codec.is_exact() || epochs == 0) return std::string(bucket.why);
  const bool has_ladder = bucket.codec.settings.contains("ratio");
  return fmt::format("after {} epoch{} {}", epochs, epochs == 1 ? "" : "s",
                     has_ladder ? "at 25 %, 6.25 %, ..." : "in fp32");
}

}  // namespace

void TextProgress::start(const RunStart& start) {
  const RunDescription& run = start.run;
  const Options& o = *run.options;
  const RoundSchedule& rounds = o.sync_every;
  const std::size_t parameters = run.network->parameters().size();
  const auto frozen = static_cast<std::int64_t>(run.network->parameters().frozen_size());
  const std::string codec =
      o.compress.codec.is_exact() ? "not compressed" : "compressed by " + o.compress.text;
  const std::string gradients = run.comm->size() == 1 ? "no gradients to exchange"
                                : !o.exchange         ? "gradients not exchanged (--exchange off)"
                                : rounds.has_rounds()
                                    ? fmt::format("exchange {}, {}", rounds.text(), codec)
                                    : "gradients " + codec;
  if (o.epochs == 0) {
    evaluation_start(run);
    return;
  }
  console_.print(fmt::format(
      "dptrain {}: {} on {} ({} training images), {} rank{}, {}.{}", DP_VERSION, o.model,
      value_of(o, "dataset"), format_count(static_cast<std::int64_t>(run.data->train->count())),
      run.comm->size(), run.comm->size() == 1 ? "" : "s", gradients,
      o.is_synthetic() ? "\nThese images are synthetic. For real images: " +
                             shipped_script("get_cifar.sh") + " cifar10 data, then --data-dir data."
                       : ""));

  const bool is_planned_for_more = run.resume == nullptr && o.planned_ranks > run.comm->size();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"hosts", host_summary(run.comm->hosts())},
      {"devices", join(start.devices)},
      {"cores", fmt::format("rank 0 may run on cores {}; each rank of this host has {:.3g} of "
                            "them{}",
                            run.share.cores, run.share.cores_per_rank, run.share.limits)},
      {"parameters",
       fmt::format("{} ({} of gradient){}", format_count(static_cast<std::int64_t>(parameters)),
                   format_bytes(4.0 * static_cast<double>(parameters)),
                   frozen == 0 ? "" : fmt::format(", and {} frozen", format_count(frozen)))},
      {"steps",
       fmt::format(
           "{} per epoch, global batch {}{}{}", run.steps_per_epoch, run.global_batch,
           o.accumulate > 1 ? fmt::format(" (in {} parts per rank)", o.accumulate) : "",
           is_planned_for_more ? fmt::format(", as planned for {} ranks", o.planned_ranks) : "")},
      {"activations", format_bytes(static_cast<double>(run.network->arena_bytes()))}};
  if (const Recipe* recipe = find_recipe(o.recipe)) {
    rows.insert(rows.begin(), {"recipe", fmt::format("{}: {}", recipe->name, recipe->text)});
  }
  if (!run.data->about.empty()) rows.emplace_back("images", run.data->about);
  if (!run.why_no_gpu.empty()) rows.insert(rows.begin() + 2, {"no GPU", run.why_no_gpu});
  if (run.comm->size() > 1) {
    const bool is_one_host = run.comm->local_size() == run.comm->size();
    std::string network =
        is_one_host ? "the memory of one host" : describe_network(format_bit_rate);
    if (run.link.bytes_per_s > 0) {
      network += fmt::format("; measured: {}, {}", format_bit_rate(8 * run.link.bytes_per_s),
                             format_seconds(run.link.latency_s));
      if (!run.link.is_reliable() && !is_one_host) {
        network += fmt::format(" (the measured rate did not settle and is uncertain by {:.0f} %)",
                               100 * run.link.uncertainty);
      }
    }
    rows.emplace_back("network", network);
    if (!run.owner_weights.empty()) rows.emplace_back("owners", describe_owners(run));
    rows.emplace_back("buckets", describe_buckets(run));
  }
  if (run.device->kind() == DeviceKind::cuda) {
    for (const auto& row : gpu_notes(gpu_facts(run))) rows.push_back(row);
  }
  if (rounds.has_rounds()) {
    rows.emplace_back(
        "rounds",
        fmt::format(
            "exchange {}, and at the end of an epoch{}; outer learning rate {:g}, "
            "momentum {:g}",
            rounds.text(),
            rounds.is_auto()   ? ", overlapped with all steps of the next round but its last step"
            : o.sync_delay > 0 ? fmt::format(", overlapped with {} step{} of the next round",
                                             o.sync_delay, o.sync_delay == 1 ? "" : "s")
                               : std::string(),
            o.outer_lr, o.outer_momentum));
  }
  console_.settings("this run", rows);
  std::vector<std::pair<std::string, std::string>> changed;
  for (const auto& [name, value] : o.changed()) {
    const bool is_said = name == "model" || name == "dataset";
    if (!is_said && !value.empty()) changed.emplace_back("--" + name, value);
  }
  if (!changed.empty()) {
    console_.settings(
        "options that differ from their defaults (--print-config shows "
        "all)",
        changed);
  }

  if (!run.buckets.empty() && run.comm->size() > 1) {
    TextTable table;
    table.header = {"bucket",
                    "elements",
                    "codec",
                    "topology",
                    rounds.has_rounds() ? "rank 0 sends an exchange" : "rank 0 sends a step",
                    "note"};
    table.align = {Align::right, Align::right, Align::left, Align::left, Align::right, Align::left};
    for (std::size_t b = 0; b < run.buckets.size(); ++b) {
      const Bucket& bucket = run.buckets[b];
      table.rows.push_back(
          {std::to_string(b), format_count(static_cast<std::int64_t>(bucket.elements)),
           bucket.codec.text(), run.topology_of(bucket),
           start.bucket_bytes[b] ? format_bytes(static_cast<double>(*start.bucket_bytes[b]))
                                 : "varies",
           note_of(run, bucket)});
    }
    console_.table("buckets, in the order in which they are sent", table);
  }
}

void TextProgress::evaluation_start(const RunDescription& run) {
  only_evaluates_ = true;
  const Options& o = *run.options;
  console_.print(fmt::format(
      "dptrain {}: evaluates {} with the weights of {} on {} ({} test images), {} rank{}.",
      DP_VERSION, o.model, o.init, value_of(o, "dataset"),
      format_count(static_cast<std::int64_t>(run.data->test->count())), run.comm->size(),
      run.comm->size() == 1 ? "" : "s"));
}

void TextProgress::prediction(const StepForecast& forecast, double bits) {
  note(fmt::format("prediction: a step takes {}, including {} waiting for the exchange{}",
                   format_seconds(forecast.step_s), format_seconds(forecast.exposed_s),
                   std::isnan(bits) ? "" : fmt::format(", at {:.3g} bits per value", bits)));
}

void TextProgress::shares(std::span<const ShareRow> rows, std::string_view why) {
  std::vector<std::string> images;
  for (const ShareRow& row : rows) images.push_back(std::to_string(row.images));
  if (why.empty()) {
    const auto [least, most] = std::ranges::minmax(rows, {}, &ShareRow::images);
    if (most.images - least.images > 1) {
      note(fmt::format("images of the ranks in a step: {}", fmt::join(images, " ")));
    }
    return;
  }
  note(fmt::format("from step {} on, images of the ranks: {} ({})", rows.front().step,
                   fmt::join(images, " "), why));
}

void TextProgress::warn(std::string_view text) { console_.warn(fmt::format("dptrain: {}", text)); }

void TextProgress::checkpoint(std::uint64_t step, const std::string& folder) {
  if (is_verbose_) note(fmt::format("checkpoint of step {} in {}", step, folder));
}

void TextProgress::evaluation(const EvaluationEnd& result) {
  if (result.augmentation.empty()) {
    console_.answer(fmt::format("test loss {:.4f}  accuracy {:.2f} %  ({} images)", result.loss,
                                100 * result.accuracy, format_count(result.images)));
    return;
  }
  const std::string line =
      fmt::format("with test-time augmentation ({}): test loss {:.4f}  accuracy {:.2f} %",
                  result.augmentation, result.loss, 100 * result.accuracy);
  if (only_evaluates_) {
    console_.answer(line);
  } else {
    console_.print(line);
  }
}

void TextProgress::epoch(const EpochEnd& epoch) {
  const EpochRow& row = epoch.row;
  console_.epoch({.epoch = static_cast<std::size_t>(row.epoch) + 1,
                  .epochs = epoch.epochs,
                  .train_loss = row.train_loss,
                  .train_accuracy = row.train_accuracy,
                  .test_loss = row.test_loss,
                  .test_accuracy = row.test_accuracy,
                  .epoch_s = row.times.epoch_s,
                  .images_per_s = epoch.images_per_s,
                  .sent_bytes = static_cast<double>(row.times.sent_bytes),
                  .exposed_comm_s = row.times.exposed_comm_s,
                  .bits_per_value = epoch.bits_per_value});
}

void TextProgress::training_end(const TrainingEnd& end) {
  if (!end.epochs.empty()) cost_table(end);
  if (!end.log.empty()) console_.print(fmt::format("The log is {}", end.log));
}

// The costs of each epoch.
void TextProgress::cost_table(const TrainingEnd& end) {
  TextTable table;
  table.header = {"epoch", "time",    "compute",    "exposed",       "data",  "other",      "comm",
                  "sent",  "of fp32", "train loss", "test accuracy", "error", "sum's error"};
  for (std::size_t e = 0; e < end.epochs.size(); ++e) {
    const EpochRow& row = end.epochs[e];
    const double fp32 = end.fp32_bytes[e];
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
  console_.table("cost of each epoch (mean over ranks; bytes: sum over ranks)", table);
  const bool has_statistics = std::ranges::any_of(
      end.epochs, [](const EpochRow& row) { return row.times.statistics_bytes > 0; });
  if (has_statistics) {
    double statistics_s = 0, bytes = 0;
    for (const EpochRow& row : end.epochs) {
      statistics_s += row.times.statistics_s;
      bytes += static_cast<double>(row.times.statistics_bytes);
    }
    const auto count = static_cast<double>(end.epochs.size());
    console_.print(
        fmt::format("Batch normalisation over all ranks: its statistics took {} per epoch, not "
                    "included in \"sent\", and {} of \"exposed\".",
                    format_bytes(bytes / count), format_seconds(statistics_s / count)));
  }
  if (!end.run.buckets.empty() && end.run.comm->size() > 1) {
    console_.print(
        "time = compute + exposed + data + other, without evaluation. comm: a bucket was in\n"
        "flight; exposed: training waited for the exchange; data: training waited for images.\n"
        "of fp32: bytes sent, in per cent of a ring without compression.\n"
        "error: the part of the gradient that encoders left for later steps. sum's error: the\n"
        "distance of one step's delivered sum from the exact sum.");
  }
}

}  // namespace dp
