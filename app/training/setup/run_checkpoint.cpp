#include "app/training/setup/run_checkpoint.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>

#include "app/process/build_info.hpp"
#include "app/process/rank_main.hpp"
#include "app/training/setup/run_options.hpp"
#include "comm/topologies/owner_weights.hpp"

namespace dp {
namespace {

// Without an exchange each rank has a model of its own, which no other rank can replace.
void check_own_models(const RunPlan& plan, const ResumePoint& point) {
  if (plan.options.exchange) return;
  const CheckpointId& id = point.checkpoint;
  if (id.ranks != plan.ranks) {
    throw_error(ErrorKind::usage,
                "--exchange off: every rank trains its own model, and the run in --checkpoint {} "
                "had {} ranks; start as many, not {}",
                plan.options.checkpoint, id.ranks, plan.ranks);
  }
  if (!point.lost.empty()) {
    throw_error(ErrorKind::data,
                "--checkpoint {}: the part of rank {} is lost, and with --exchange off nobody else "
                "has its model",
                plan.options.checkpoint, point.lost.front());
  }
}

}  // namespace

void find_checkpoint(RunPlan& plan, Communicator& comm, Device& device, RunCheckpoint& checkpoint) {
  const Options& options = plan.options;
  // If an earlier run has just failed, its ranks need up to this time to end.
  const double patience_s = std::min(15.0, options.comm_timeout_s);
  const std::string& folder = options.checkpoint;
  checkpoint.attempt = draw_attempt(comm);
  std::exception_ptr why_not;
  together(comm, kDptrainNames, [&] {
    try {
      prepare_checkpoint_folder(folder);
    } catch (const Error&) {
      if (!options.resume) throw;
      why_not = std::current_exception();
    }
    std::error_code ignored;
    if (why_not && !std::filesystem::is_directory(folder, ignored)) return;
    checkpoint.lock.emplace(folder, checkpoint.attempt, std::chrono::duration<double>(patience_s));
  });
  checkpoint.resume = find_resume_point(options, comm);
  if (!checkpoint.resume) {
    // A disk that cannot be written does not end a resumed run. The next checkpoint reports it.
    if (options.resume) {
      together(comm, kDptrainNames, [&] {
        if (why_not) std::rethrow_exception(why_not);
      });
    }
    return;
  }
  const CheckpointHead& head = checkpoint.resume->head;
  together(comm, kDptrainNames, [&] {
    check_own_models(plan, *checkpoint.resume);
    checkpoint.notes = compare_options(head, options);
    checkpoint.has_other_schedule = !checkpoint.notes.empty();
    plan.planned_ranks = head.number("planned_ranks");
    plan.choices.bucket_bytes = head.number("bucket_bytes");
    plan.choices.exchange_path = head.get("exchange_path");
    // Old checkpoints lack the entry "owner_weights", because all ranks then owned equal parts of
    // each bucket.
    if (checkpoint.resume->checkpoint.ranks == plan.ranks) {
      plan.choices.owner_weights = head.has("owner_weights") ? head.get("owner_weights") : "";
    }
    plan.choices.auto_sends_velocities = head.number("auto_sends_velocities") != 0;
    plan.choices.is_on_gpus = head.has("is_on_gpus") && head.number("is_on_gpus") != 0;
    const Shard& any =
        checkpoint.resume->own.empty() ? *checkpoint.resume->replicated : checkpoint.resume->own[0];
    device.tuning().import_text(any.text("algorithms"));
  });
}

std::vector<std::string> compare_machine(Communicator& comm, const ResumePoint& point,
                                         const Options& options, const RunFacts& facts) {
  std::string device_then;
  together(comm, kDptrainNames, [&] {
    if (!point.own.empty()) device_then = device_in(CheckpointHead(point.own[0].text(kHeadEntry)));
  });
  const std::vector<std::string> now = comm.gather(facts.device), then = comm.gather(device_then);
  std::vector<std::string> told;
  together(comm, kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    told = compare_facts(point.head, options, facts);
    for (const std::string& line : device_changes(now, then)) told.push_back(line);
  });
  return told;
}

CheckpointHead head_of(const RunPlan& plan, const RunFacts& facts, const GradientSync& sync) {
  CheckpointHead head;
  add_options(head, plan.options);
  add_facts(head, facts);
  head.set("planned_ranks", plan.planned_ranks);
  head.set("global_batch", plan.global_batch);
  head.set("bucket_bytes", sync.bucket_bytes());
  head.set("exchange_path", sync.path());
  head.set("owner_weights", owner_weights_text(plan.owner_weights));
  // These choices hold even if the run is resumed on another device, because velocities and
  // segments are part of the run's state.
  head.set("is_on_gpus", plan.is_on_gpus ? 1 : 0);
  head.set("auto_sends_velocities", plan.sends_velocities ? 1 : 0);
  return head;
}

RunFacts collect_facts(const Communicator& comm, const Device& device, std::uint64_t data_hash) {
  return {.ranks = comm.hosts().size(),
          .hosts = comm.hosts(),
          .device = device.description(),
          .device_kind = device.kind() == DeviceKind::cuda ? "cuda" : "cpu",
          .mpi_version = mpi_version(),
          .build = fmt::format("{}, build {}", build_name(), build_id()),
          .data_hash = data_hash};
}

}  // namespace dp
