#include "app/training/share_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "app/options/options_values.hpp"
#include "app/process/run_status.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"
#include "kernels/host_memory.hpp"

namespace dp {
namespace {

// The number of steps between two decisions. The first interval is shorter, because very uneven
// machines can be seen early. After kCalm intervals without a change, decisions become rarer. The
// first kUncounted steps after a change are not measured. Some of them still have the old shares,
// others make plans for the new shares, and a GPU's times become known one step late.
constexpr std::uint64_t kInterval = 8, kFirstInterval = 4, kCalmInterval = 16, kUncounted = 3;
constexpr std::size_t kCalm = 4;
// The activations of larger shares may use this fraction of the memory that is free after set-up.
constexpr double kMemoryShare = 0.7;

constexpr const char* kSharesEntry = "shares";

// The mean of the middle half of the sorted values. Steps that something else has delayed are thus
// ignored.
double middle_mean(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t cut = values.size() / 4;
  const std::span<const double> middle =
      std::span<const double>(values).subspan(cut, values.size() - 2 * cut);
  return std::accumulate(middle.begin(), middle.end(), 0.0) / static_cast<double>(middle.size());
}

// The number of each rank's machine. A machine is the processors of one host, or one GPU.
std::vector<std::size_t> machines_of(Communicator& comm, const Device& device) {
  const int gpu =
      device.kind() == DeviceKind::cuda ? comm.local_rank() % std::max(count_gpus(), 1) : -1;
  const std::vector<int> gpus = comm.all_gather(gpu);
  std::map<std::pair<std::string, int>, std::size_t> numbers;
  std::vector<std::size_t> machines;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    const std::pair<std::string, int> machine(comm.hosts()[r], gpus[r]);
    machines.push_back(numbers.try_emplace(machine, numbers.size()).first->second);
  }
  return machines;
}

// The largest number of images in a part for which this rank has enough memory.
std::size_t images_in_memory(Run& run) {
  net::Network& network = run.replica->network();
  const std::size_t one = network.planned_bytes(1);
  if (one == 0) return 0;
  const bool is_gpu = run.machine.device->kind() == DeviceKind::cuda;
  const std::size_t sharers =
      is_gpu ? run.machine.ranks_on_gpu : static_cast<std::size_t>(run.machine.share.ranks_on_host);
  const std::size_t free =
      is_gpu ? run.machine.device->free_bytes() / sharers : free_host_memory(sharers).bytes;
  const double bytes =
      static_cast<double>(network.arena_bytes()) + kMemoryShare * static_cast<double>(free);
  return static_cast<std::size_t>(bytes / static_cast<double>(one));
}

Shares shares_of(const std::vector<std::uint64_t>& images) {
  const auto [least, most] = std::ranges::minmax(images);
  if (most - least <= 1) return {};  // even shares may differ by one image, too
  return Shares(images);
}

}  // namespace

bool ShareFacts::is_one_machine() const { return std::ranges::max(machines) == 0; }

ShareFacts gather_share_facts(Run& run) {
  ShareFacts facts;
  const std::size_t most = images_in_memory(run);
  run.replica->sync().reducer().run([&](Communicator& comm) {
    facts.machines = machines_of(comm, *run.machine.device);
    facts.most_images = comm.all_gather(most);
  });
  return facts;
}

// With --sync-bn on a GPU, the shares do not change: layers gather values of all ranks, so the
// plans of all batch sizes must be made before the first step (Replica::prepare).
SharePlan::SharePlan(Run& run)
    : run_(run),
      is_auto_(run.plan.options.measures_shares() &&
               !(run.machine.has_any_gpu && run.plan.options.sync_bn)),
      shares_(run.plan.shares) {
  if (!is_auto_) return;
  for (const RunChoices::ShareChange& change : run.plan.choices.shares) {
    replayed_.push_back({change.step, shares_of(change.weights)});
  }
  if (!replayed_.empty()) {
    if (replayed_.front().step == 0) set(replayed_.front().shares);
    return;
  }
  ShareFacts facts = gather_share_facts(run);
  if (facts.is_one_machine()) return;  // the ranks of one machine get equal shares
  most_images_ = facts.most_images[static_cast<std::size_t>(run.comm.rank())];
  measures_ = true;
  if (run.comm.rank() == 0) {
    control_.emplace(std::move(facts.machines), run.plan.options.shares.least);
  }
  begin_interval(0);
}

// With --sync-bn, layers wait for all ranks, so steps cannot be rehearsed.
bool SharePlan::can_begin() const {
  return measures_ && !run_.checkpoint.resume && !run_.plan.options.sync_bn &&
         run_.plan.schedule.epochs > 0;
}

void SharePlan::begin(std::span<const double> compute_s) {
  const std::vector<std::size_t> images = images_of(run_.plan.global_batch);
  const ShareMeasurement mine = {.compute_s = compute_s[static_cast<std::size_t>(run_.comm.rank())],
                                 .most_images = run_.train_loader->parts() * most_images_};
  const auto first = agree(mine, [&](std::span<const ShareMeasurement> of_ranks) {
    return control_->begin(of_ranks, images);
  });
  if (!first) return;
  rehearsed_s_.assign(compute_s.begin(), compute_s.end());
  set(*first);
}

void SharePlan::begin_interval(std::uint64_t steps) {
  if (!measures_) return;
  interval_begin_ = steps + kUncounted;
  interval_end_ = interval_begin_ + (steps == 0        ? kFirstInterval
                                     : quiet_ >= kCalm ? kCalmInterval
                                                       : kInterval);
  compute_s_.clear();
  step_s_.clear();
}

void SharePlan::record_first() {
  const bool is_told = is_auto_ || !shares_.is_even();
  if (!is_told || run_.comm.rank() != 0) return;
  const std::vector<std::size_t> images = images_of(run_.plan.global_batch);
  std::vector<ShareRow> rows = rows_of({0, shares_}, run_.plan.global_batch);
  if (rehearsed_s_.empty()) {
    run_.recorder->record_shares(rows, {});
    return;
  }
  const std::vector<StepModel>& models = control_->models();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].compute_s = rehearsed_s_[r];
    rows[r].fixed_s = models[r].fixed_s;
    rows[r].image_s = models[r].image_s;
  }
  run_.recorder->record_shares(
      rows, fmt::format("computing a rehearsed step took {}, and should now take {}",
                        format_seconds(std::ranges::max(rehearsed_s_)),
                        format_seconds(slowest_s(models, images))));
}

std::vector<ShareRow> SharePlan::rows_of(const Change& change, std::size_t global_batch) const {
  std::vector<ShareRow> rows;
  for (const std::size_t images : change.shares.counts(global_batch, run_.plan.ranks)) {
    rows.push_back({.step = static_cast<std::int64_t>(change.step) + 1,
                    .rank = static_cast<std::int64_t>(rows.size()),
                    .images = static_cast<std::int64_t>(images)});
  }
  return rows;
}

std::vector<std::size_t> SharePlan::images_of(std::size_t global_batch) const {
  return shares_.counts(global_batch, run_.plan.ranks);
}

std::string SharePlan::images_text(std::size_t global_batch) const {
  return fmt::format("{}", fmt::join(images_of(global_batch), " "));
}

void SharePlan::set(const Shares& shares) {
  shares_ = shares;
  run_.train_loader->set_shares(shares);
  run_.test_loader->set_shares(shares);
}

void SharePlan::before_load(std::uint64_t step) {
  if (!next_ || step < next_->step) return;
  set(std::exchange(next_, std::nullopt)->shares);
  RunStatus::say_images(images_text(run_.plan.global_batch));
}

bool SharePlan::is_due(std::uint64_t steps) const {
  return interval_end_ > 0 && steps + 1 >= interval_end_;
}

ShareMeasurement SharePlan::measured() const {
  if (compute_s_.empty()) return {};
  const std::size_t parts = run_.train_loader->parts();
  return {.compute_s = middle_mean(compute_s_),
          .step_s = middle_mean(step_s_),
          .most_images = parts * most_images_};
}

void SharePlan::end_step(std::uint64_t steps, const LoopTimes& times, std::size_t global_batch) {
  if (!replayed_.empty()) {
    const auto it = std::ranges::find(replayed_, steps + 1, &Change::step);
    if (it == replayed_.end()) return;
    next_ = *it;
    if (run_.comm.rank() == 0) {
      run_.recorder->record_shares(rows_of(*next_, global_batch), "as in the earlier run");
    }
    return;
  }
  if (interval_end_ == 0) return;
  if (steps > interval_begin_ && times.step() > 0.0) {
    compute_s_.push_back((times.data + times.compute()) / times.steps);
    step_s_.push_back(times.step() / times.steps);
  }
  if (steps < interval_end_) return;
  decide(steps, global_batch);
  quiet_ = next_ ? 0 : quiet_ + 1;
  begin_interval(next_ ? next_->step : steps - kUncounted);
}

std::optional<Shares> SharePlan::agree(const ShareMeasurement& mine, const Choose& choose) {
  std::string weights;
  run_.replica->sync().reducer().run([&](Communicator& comm) {
    const std::vector<ShareMeasurement> of_ranks = comm.gather_rows(std::span(&mine, 1));
    if (control_) {
      if (const auto images = choose(of_ranks)) {
        weights = fmt::format("{}", fmt::join(*images, ":"));
      }
    }
    comm.broadcast(weights);
  });
  if (weights.empty()) return std::nullopt;
  std::vector<std::uint64_t> chosen;
  for (const std::string& number : split_at(weights, ':')) chosen.push_back(std::stoull(number));
  return shares_of(chosen);
}

void SharePlan::decide(std::uint64_t steps, std::size_t global_batch) {
  const std::size_t ranks = run_.plan.ranks;
  const std::vector<std::size_t> images = images_of(global_batch);
  std::vector<ShareMeasurement> all;
  std::optional<ShareControl::Decision> decision;
  const auto chosen = agree(
      measured(),
      [&](std::span<const ShareMeasurement> of_ranks) -> std::optional<std::vector<std::size_t>> {
        all.assign(of_ranks.begin(), of_ranks.end());
        decision = control_->decide(of_ranks, images);
        return decision ? std::optional(decision->images) : std::nullopt;
      });
  if (!chosen) return;
  next_ = Change{steps + 1, *chosen};
  if (!decision) return;
  std::vector<ShareRow> rows = rows_of(*next_, global_batch);
  for (std::size_t r = 0; r < ranks; ++r) {
    const StepModel& model = control_->models()[r];
    rows[r].compute_s = all[r].compute_s;
    rows[r].step_s = decision->step_s;
    rows[r].fixed_s = model.fixed_s;
    rows[r].image_s = model.image_s;
  }
  run_.recorder->record_shares(
      rows,
      decision->is_undone
          ? fmt::format("as before the last change, because steps take {} instead of {}",
                        format_seconds(decision->step_s), format_seconds(decision->expected_s))
          : fmt::format("a step took {}, and should now take {}", format_seconds(decision->step_s),
                        format_seconds(decision->expected_s)));
}

void SharePlan::save(CheckpointHead& head) const {
  head.set(kSharesEntry, shares_.text());
  if (next_) head.set("shares_next", fmt::format("{} {}", next_->step, next_->shares.text()));
}

void SharePlan::restore(const CheckpointHead& head, std::uint64_t steps) {
  const auto parse = [&](const std::string& text) -> std::optional<Shares> {
    if (text == "even") return Shares();
    std::vector<std::uint64_t> weights;
    for (const std::string& number : split_at(text, ':')) weights.push_back(std::stoull(number));
    if (weights.size() != run_.plan.ranks) return std::nullopt;
    return Shares(std::move(weights));
  };
  // Weights that were given with the option are already set.
  if ((measures_ || !replayed_.empty()) && head.has(kSharesEntry)) {
    if (const auto shares = parse(head.get(kSharesEntry))) set(*shares);
    if (head.has("shares_next")) {
      const std::string text = head.get("shares_next");
      const std::size_t blank = text.find(' ');
      if (const auto shares = parse(text.substr(blank + 1))) {
        next_ = Change{std::stoull(text.substr(0, blank)), *shares};
      }
    }
  }
  begin_interval(steps);
}

}  // namespace dp
