// dptrain --check, in this order: compute two steps of a short run (measure), find errors that only
// the real run would meet (check_run_setup), measure links and clocks, look at the disks. Then
// rank 0 prints tables, notes and problems (check_run). Findings collects the problems; the first
// one decides the exit code.
#include "app/planning/check.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "app/checkpoint/resume.hpp"
#include "app/options/options_values.hpp"
#include "app/output/progress.hpp"
#include "app/output/recorder.hpp"
#include "app/planning/check_disk.hpp"
#include "app/planning/check_network.hpp"
#include "app/planning/plan_choices.hpp"
#include "app/planning/rehearsal.hpp"
#include "app/process/build_info.hpp"
#include "app/process/rank_main.hpp"
#include "app/training/setup/run_batches.hpp"
#include "app/training/setup/run_checkpoint.hpp"
#include "app/training/setup/run_setup.hpp"
#include "comm/mpi/clock_offset.hpp"
#include "comm/mpi/network_interface.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/owner_weights.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"
#include "kernels/host_memory.hpp"

namespace dp {
namespace {

// A step is measured with at most this many images. Its time is then scaled.
constexpr std::int64_t kMostImages = 16;
constexpr double kMostSeconds = 5.0;  // after this time no other step begins
constexpr double kLateClock_s = 1.0;

std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A rank's row in the table of ranks.
struct RankFacts {
  double cores = 0, threads = 0, needed_bytes = 0, free_bytes = 0, compute_s = 0;
  double clock_s = 0;  // this rank's clock minus rank 0's
  double images = 0;   // in a step
};

struct Findings {
  std::vector<std::string> problems, notes;
  std::string resume;  // the line about the checkpoint; empty: the run starts anew
  int exit_code = 0;
  void add(int code, const std::string& text) {
    if (exit_code == 0) exit_code = code;
    problems.push_back(text);
  }
};

// The options of a short run that computes a step as the real run would, but trains nothing. The
// short run sets up the real run's exchange, so that errors in the exchange's options are found,
// but exchanges nothing.
Options trial_options(const Options& options, int ranks) {
  Options trial = options;
  const std::int64_t batch =
      (options.global_batch_of(ranks) / options.accumulate + ranks - 1) / ranks;
  trial.batch_size = std::clamp<std::int64_t>(batch, 1, kMostImages);
  trial.global_batch = 0;
  trial.accumulate = 1;
  trial.batch_schedule = {};
  trial.sync_bn = false;
  trial.sync_every = {};
  trial.shares = ShareChoice::even();
  trial.autotune = "off";
  trial.log = trial.trace = trial.export_file = trial.checkpoint = trial.tensorboard = "none";
  trial.resume = false;
  trial.quiet = true;
  trial.epochs = std::max<std::int64_t>(1, options.epochs);
  return trial;
}

// Collective. Returns, for each rank, the seconds of a step with `images` on each rank. The time is
// measured with fewer images and scaled. Of two steps, only the second one counts.
std::vector<double> measure_step(Run& run, double images) {
  const std::size_t ranks = run.plan.ranks;
  const std::size_t all = std::min(run.plan.global_batch, run.data.train->count());
  const double samples = static_cast<double>((all + ranks - 1) / ranks);
  const auto steps =
      rehearse_steps(*run.replica, *run.train_loader, {.steps = 2, .seconds = kMostSeconds});
  std::vector<double> seconds;
  for (const RehearsedStep& rank : steps.back()) {
    seconds.push_back(rank.update_s + rank.backward_end_s * images / samples);
  }
  return seconds;
}

// Facts about the short run that the check of the real run needs.
struct Rehearsed {
  RunFacts facts;
  std::size_t images = 0;           // of the training set
  std::vector<std::string> layers;  // norms_of_single_values()
};

// Collective. Finds errors that only the real run would meet, and the checkpoint from which the
// real run would resume.
void check_run_setup(const Options& options, Communicator& comm, const Rehearsed& run,
                     Findings& found) {
  try {
    const std::optional<ResumePoint> point =
        options.has_checkpoints() ? find_resume_point(options, comm) : std::nullopt;
    std::vector<std::string> notes;
    std::optional<SingleValues> single;
    together(comm, kDptrainNames, [&] {
      const std::size_t batch =
          point ? point->head.number("global_batch")
                : static_cast<std::size_t>(options.global_batch_of(comm.size()));
      check_batches(options, batch, static_cast<std::size_t>(comm.size()), point.has_value());
      static_cast<void>(
          first_shares(options, batch, static_cast<std::size_t>(comm.size()), point.has_value()));
      const auto epochs = static_cast<std::size_t>(std::max<std::int64_t>(0, options.epochs));
      if (options.trace != "none")
        check_traced_steps(options, epochs * ((run.images + batch - 1) / batch));
      if (point) notes = compare_options(point->head, options);
      single = find_single_values(run.layers, {.options = options,
                                               .samples = run.images,
                                               .ranks = static_cast<std::size_t>(comm.size()),
                                               .global_batch = batch,
                                               .goes_on = point.has_value()});
    });
    if (single && single->is_error) found.add(static_cast<int>(ErrorKind::usage), single->text);
    if (single && !single->is_error) found.notes.push_back(single->text);
    if (!point) return;
    for (const std::string& note : compare_machine(comm, *point, options, run.facts)) {
      notes.push_back(note);
    }
    found.resume =
        fmt::format("checkpoint: the run continues from step {}{}{}", point->checkpoint.step,
                    notes.empty() ? "" : ", with ", fmt::join(notes, "; "));
  } catch (const AgreedError& error) {
    found.add(error.exit_code(), error.what());
  }
}

// The memory that a whole run needs: activations, the copies of parameters that rounds keep, and a
// copy of the state for a checkpoint. For each weight it also needs the value, gradient, optimiser
// state, averages and residual.
double needed_bytes(Run& run, const Options& options, std::size_t images) {
  const double weights = static_cast<double>(run.replica->network().parameters().size());
  const double of_optimizer = options.optimizer == Options::Optimizer::adam ||
                                      options.optimizer == Options::Optimizer::adamw
                                  ? 2.0
                                  : 1.0;
  const CodecSpec codec = options.compress.with_velocities(run.plan.sends_velocities).codec;
  const double residual =
      (codec.is_exact() ? 0.0 : 1.0) + (takes_momentum(codec) ? of_optimizer : 0.0);
  const double averages = (options.ema > 0 ? 1.0 : 0.0) + (options.lookahead_every > 0 ? 1.0 : 0.0);
  // Rounds keep the common parameters, the outer momentum, and a copy of the residual while an
  // exchange runs. With a delay they also keep the parameters that were sent, and a buffer for the
  // exchange.
  const bool has_rounds = options.sync_every.has_rounds();
  const bool has_delay = options.sync_delay > 0 || options.sync_every.is_auto();
  const double outer = options.outer_momentum > 0 ? 1.0 : 0.0;
  const double only_here =
      !has_rounds ? 0.0 : 1.0 - outer + (residual > 0 ? 1.0 : 0.0) + (has_delay ? 2.0 : 0.0);
  const double state = 1.0 + of_optimizer + residual + averages + (has_rounds ? 1.0 + outer : 0.0);
  const double accumulated =
      options.accumulate > 1 || options.batch_schedule.kind != BatchSchedule::Kind::fixed ? 1.0
                                                                                          : 0.0;
  const double numbers =
      1.0 + accumulated + only_here + state * (options.has_checkpoints() ? 2.0 : 1.0);
  // A GPU also holds the images: those of one batch as floats, and those of two batches as bytes.
  const double of_image = static_cast<double>(run.replica->network().images_desc(1).bytes());
  const double input = run.machine.device->kind() == DeviceKind::cpu ? 0.0 : 1.5 * of_image;
  return static_cast<double>(run.replica->network().planned_bytes(images)) +
         input * static_cast<double>(images) + sizeof(float) * numbers * weights;
}

// The size of a rank's part of a checkpoint. Rounds, which the short run does not have, add the
// common parameters and the outer momentum.
double checkpoint_bytes(Run& run, const Options& options) {
  StateList state;
  run.replica->list_state(state);
  double bytes = 0;
  for (const StateBlock& block : state.blocks) bytes += static_cast<double>(block.bytes.size());
  if (!options.sync_every.has_rounds()) return bytes;
  return bytes + sizeof(float) * (options.outer_momentum > 0 ? 2.0 : 1.0) *
                     static_cast<double>(run.replica->network().parameters().size());
}

std::string signed_seconds(double seconds) {
  return (seconds < 0 ? "-" : "+") + format_seconds(std::abs(seconds));
}

TextTable rank_table(const Communicator& comm, const std::vector<RankFacts>& all,
                     const std::vector<std::string>& interfaces, Findings& found) {
  TextTable table;
  table.header = {"rank", "host",   "network",         "threads", "memory needed",
                  "free", "images", "a step computes", "clock"};
  table.align = {Align::right, Align::left,  Align::left,  Align::right, Align::right,
                 Align::right, Align::right, Align::right, Align::right};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const RankFacts& facts = all[rank];
    const bool is_known = facts.needed_bytes > 0;
    table.rows.push_back({std::to_string(rank), comm.hosts()[rank], interfaces[rank],
                          format_number(facts.threads, 0),
                          is_known ? format_bytes(facts.needed_bytes) : "-",
                          facts.free_bytes > 0 ? format_bytes(facts.free_bytes) : "-",
                          facts.images > 0 ? format_number(facts.images, 0) : "-",
                          facts.compute_s > 0 ? format_seconds(facts.compute_s) : "-",
                          rank == 0 ? "0" : signed_seconds(facts.clock_s)});
    const std::string who = fmt::format("rank {} on host {}", rank, comm.hosts()[rank]);
    if (facts.needed_bytes > facts.free_bytes && facts.free_bytes > 0) {
      found.add(static_cast<int>(ErrorKind::device),
                fmt::format("memory: {} needs {} and has {}: try a smaller --batch-size or "
                            "--model, or --accumulate",
                            who, format_bytes(facts.needed_bytes), format_bytes(facts.free_bytes)));
    }
  }
  return table;
}

TextTable pair_table(const Communicator& comm, const std::vector<HostPair>& pairs) {
  TextTable table;
  table.header = {"from",    "to",           "there",       "back",
                  "latency", "uncertain by", "route there", "route back"};
  table.align = {Align::left,  Align::left,  Align::right, Align::right,
                 Align::right, Align::right, Align::left,  Align::left};
  for (const HostPair& pair : pairs) {
    const auto host = [&](int rank) { return comm.hosts()[static_cast<std::size_t>(rank)]; };
    table.rows.push_back(
        {host(pair.first_rank), host(pair.second_rank),
         format_bit_rate(8 * pair.to_second.bytes_per_s),
         format_bit_rate(8 * pair.to_first.bytes_per_s),
         format_seconds(std::min(pair.to_first.latency_s, pair.to_second.latency_s)),
         format_percent(std::max(pair.to_first.uncertainty, pair.to_second.uncertainty)),
         pair.there, pair.back});
  }
  return table;
}

// Everything that every rank measures.
struct Measured {
  RankFacts mine;
  double checkpoint_bytes = 0;  // of this rank's part
  std::string data, model;
  std::vector<HostPair> pairs;
  std::vector<std::uint32_t> owner_weights;  // by rank, for topology "direct"; empty: all alike
  double one_host_bytes_per_s = 0;
};

// Collective. Sets the number of images that this rank computes in a step, and the time that they
// take.
void divide(Run& run, const Options& options, Measured& result) {
  const std::size_t ranks = run.plan.ranks;
  const auto rank = static_cast<std::size_t>(run.comm.rank());
  const auto batch =
      static_cast<std::size_t>(options.global_batch_of(static_cast<std::int64_t>(ranks)));
  const double even = static_cast<double>(batch) / static_cast<double>(ranks);
  Calibration calibration;
  std::vector<RehearsedStep>& step = calibration.steps.emplace_back();
  for (const double step_s : measure_step(run, even)) {
    step.push_back({.ready_s = {}, .backward_end_s = step_s});
  }
  std::vector<std::size_t> images =
      planned_images(options, calibration, gather_share_facts(run), ranks, batch, 1.0);
  if (images.empty()) images = Shares().counts(batch, ranks);
  result.mine.images = static_cast<double>(images[rank]);
  const StepModel model = StepModel::guess(even, step[rank].backward_end_s);
  result.mine.compute_s = model.fixed_s + model.image_s * result.mine.images;
}

Measured measure(const Options& options, Communicator& comm, Findings& found) {
  Measured result;
  const Options trial = trial_options(options, comm.size());
  Rehearsed rehearsed;
  try {
    const std::unique_ptr<RunSink> progress = make_progress(trial);
    Run run(trial, comm, *progress, Run::Purpose::rehearsal);
    const auto ranks_here = static_cast<std::size_t>(run.machine.share.ranks_on_host);
    result.mine.cores = run.machine.share.cores_per_rank;
    result.mine.threads = run.machine.share.threads;
    divide(run, options, result);
    const auto parts = static_cast<double>(options.accumulate);
    result.mine.needed_bytes =
        needed_bytes(run, options, static_cast<std::size_t>(std::ceil(result.mine.images / parts)));
    const std::size_t free_bytes =
        run.machine.device->kind() == DeviceKind::cpu
            ? free_host_memory(ranks_here).bytes
            : run.machine.device->free_bytes() / run.machine.ranks_on_gpu;
    result.mine.free_bytes =
        static_cast<double>(free_bytes) + static_cast<double>(run.replica->network().arena_bytes());
    result.checkpoint_bytes = checkpoint_bytes(run, options);
    result.data = fmt::format(
        "{} training and {} test images, the same on all ranks (hash {:016x})",
        format_count(static_cast<std::int64_t>(run.data.train->count())),
        format_count(static_cast<std::int64_t>(run.data.test->count())), run.facts.data_hash);
    rehearsed = {.facts = run.facts,
                 .images = run.data.train->count(),
                 .layers = norms_of_single_values(trial, *run.data.train)};
  } catch (const AgreedError& error) {
    found.add(error.exit_code(), error.what());
  }
  // The main thread owns the communicator again, so from here on it sets the activity itself.
  if (rehearsed.images > 0) {
    comm.set_activity("the search for a checkpoint");
    check_run_setup(options, comm, rehearsed, found);
  }
  comm.set_activity("the measurement of the network");
  const bool is_one_host = comm.local_size() == comm.size();
  if (comm.size() > 1 && is_one_host) result.one_host_bytes_per_s = probe_link(comm).bytes_per_s;
  if (!is_one_host) {
    std::vector<double> own_bytes_per_s;
    static_cast<void>(probe_link(comm, &own_bytes_per_s));
    result.owner_weights = planned_owners(options, std::move(own_bytes_per_s));
    result.pairs = probe_hosts(comm);
  }
  comm.set_activity("the comparison of clocks");
  const ClockReading clock = read_clock_offset(comm, wall_clock_ns);
  result.mine.clock_s = 1e-9 * static_cast<double>(clock.offset_ns);
  comm.set_activity("the end of the check");
  return result;
}

void print(const std::string& title, const TextTable& table) {
  std::fputs((title + "\n" + format_table(table, 2)).c_str(), stdout);
}

}  // namespace

int check_run(const Options& options, Communicator& comm) {
  Findings found;
  const Measured here = measure(options, comm, found);
  const std::vector<RankFacts> all = comm.all_gather(here.mine);
  const std::vector<std::string> interfaces = comm.gather(describe_network(format_bit_rate));
  DiskState disk;
  comm.busy([&] {
    disk = describe_disk(options, comm.rank() == 0,
                         {.part_bytes = here.checkpoint_bytes,
                          .ranks = static_cast<std::size_t>(comm.local_size())});
  });
  const std::vector<std::string> disks = comm.gather(disk.text);
  std::vector<std::string> builds =
      comm.gather(fmt::format("{} for {}", build_id(), architecture()));
  std::ranges::sort(builds);
  builds.erase(std::unique(builds.begin(), builds.end()), builds.end());
  const std::vector<int> bad = comm.all_gather(disk.is_bad ? 1 : 0);

  int exit_code = 0;
  if (comm.rank() == 0) {
    std::printf("dptrain %s --check: %s on %s, %d rank%s, --compress %s\n", DP_VERSION,
                options.model.c_str(), options.dataset.c_str(), comm.size(),
                comm.size() == 1 ? "" : "s", options.compress.text.c_str());
    std::printf("program: revision %s, build%s %s, %s: the same on all ranks\n",
                git_revision().c_str(), builds.size() == 1 ? "" : "s",
                fmt::format("{}", fmt::join(builds, ", ")).c_str(), mpi_version().c_str());
    if (!here.data.empty()) std::printf("data: %s\n", here.data.c_str());
    if (!found.resume.empty()) std::printf("%s\n", found.resume.c_str());
    print("ranks", rank_table(comm, all, interfaces, found));
    if (!here.owner_weights.empty()) {
      std::printf("the ranks own %s of each bucket (topology direct)\n",
                  owner_percentages(here.owner_weights).c_str());
    }
    for (std::size_t rank = 0; rank < disks.size(); ++rank) {
      if (rank > 0 && disks[rank] == "nothing is written") continue;
      std::printf("disk of rank %zu: %s\n", rank, disks[rank].c_str());
      if (bad[rank] != 0) {
        found.add(
            static_cast<int>(ErrorKind::data),
            fmt::format("disk: rank {} on host {}: {}", rank, comm.hosts()[rank], disks[rank]));
      }
    }
    if (here.one_host_bytes_per_s > 0) {
      std::printf("network: one host, %s between its ranks\n",
                  format_bit_rate(8 * here.one_host_bytes_per_s).c_str());
    }
    if (!here.pairs.empty()) {
      print("links between hosts, in both directions at the same time",
            pair_table(comm, here.pairs));
    }
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (std::abs(all[rank].clock_s) < kLateClock_s) continue;
      std::printf(
          "note: the clock of host %s is off by %s: times in logs and names will not match; "
          "training is not affected\n",
          comm.hosts()[rank].c_str(), signed_seconds(all[rank].clock_s).c_str());
    }
    for (const std::string& note : found.notes) std::printf("note: %s\n", note.c_str());
    for (const std::string& problem : found.problems) {
      std::fflush(stdout);
      std::fprintf(stderr, "dptrain: %s\n", problem.c_str());
    }
    std::printf("%s\n", found.problems.empty() ? "go: this run can start"
                                               : "no go: see the messages above");
    exit_code = found.exit_code;
  }
  return comm.all_gather(exit_code).front();
}

}  // namespace dp
