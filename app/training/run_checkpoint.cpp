#include "app/training/run_checkpoint.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>

#include "app/output/recorder.hpp"
#include "app/process/build_info.hpp"
#include "app/process/rank_main.hpp"
#include "app/training/run_options.hpp"

namespace dp {
namespace {

// Without an exchange nobody else has what a rank has learnt.
void check_own_models(const Run& run) {
  if (run.options.exchange) return;
  const CheckpointId& id = run.resume->checkpoint;
  if (id.ranks != static_cast<std::uint32_t>(run.comm.size())) {
    throw_error(ErrorKind::usage,
                "--exchange off: every rank trains its own model, and the run in --checkpoint {} "
                "had {} ranks; start as many, not {}",
                run.options.checkpoint, id.ranks, run.comm.size());
  }
  if (!run.resume->lost.empty()) {
    throw_error(ErrorKind::data,
                "--checkpoint {}: the part of rank {} is lost, and with --exchange off nobody else "
                "has its model",
                run.options.checkpoint, run.resume->lost.front());
  }
}

}  // namespace

void find_checkpoint(Run& run) {
  // Ranks of an earlier run may take so long to notice that it has ended.
  const double patience_s = std::min(15.0, run.options.comm_timeout_s);
  const std::string& folder = run.options.checkpoint;
  run.attempt = draw_attempt(run.comm);
  std::exception_ptr why_not;
  together(run.comm, kDptrainNames, [&] {
    try {
      prepare_checkpoint_folder(folder);
    } catch (const Error&) {
      if (!run.options.resume) throw;
      why_not = std::current_exception();
    }
    std::error_code ignored;
    if (why_not && !std::filesystem::is_directory(folder, ignored)) return;
    run.checkpoint_lock.emplace(folder, run.attempt, std::chrono::duration<double>(patience_s));
  });
  run.resume = find_resume_point(run.options, run.comm);
  if (!run.resume) {
    // A host whose disk cannot be written by now ends no run that goes on: it is told with the next
    // checkpoint.
    if (run.options.resume) {
      together(run.comm, kDptrainNames, [&] {
        if (why_not) std::rethrow_exception(why_not);
      });
    }
    return;
  }
  const CheckpointHead& head = run.resume->head;
  together(run.comm, kDptrainNames, [&] {
    check_own_models(run);
    run.resume_notes = compare_options(head, run.options);
    run.has_other_schedule = !run.resume_notes.empty();
    run.planned_ranks = head.number("planned_ranks");
    run.choices.bucket_bytes = head.number("bucket_bytes");
    run.choices.exchange_path = head.get("exchange_path");
    run.choices.auto_sends_velocities = head.number("auto_sends_velocities") != 0;
    const Shard& any = run.resume->own.empty() ? *run.resume->replicated : run.resume->own[0];
    run.device->tuning().import_text(any.text("algorithms"));
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

void compare_with_checkpoint(Run& run) {
  for (const std::string& line : compare_machine(run.comm, *run.resume, run.options, run.facts())) {
    run.resume_notes.push_back(line);
  }
}

bool Run::sends_velocities() const {
  return choices.auto_sends_velocities.value_or(auto_sends_velocities(options, device->kind()));
}

CheckpointHead Run::head() {
  CheckpointHead head;
  add_options(head, options);
  add_facts(head, facts());
  head.set("planned_ranks", planned_ranks);
  head.set("global_batch", global_batch);
  head.set("bucket_bytes", replica->sync().bucket_bytes());
  head.set("exchange_path", replica->sync().path());
  // Also where the run goes on with another device: velocities are a part of its state.
  head.set("auto_sends_velocities", sends_velocities() ? 1 : 0);
  return head;
}

RunFacts Run::facts() const {
  return {.ranks = comm.hosts().size(),
          .hosts = comm.hosts(),
          .device = device->description(),
          .device_kind = device->kind() == DeviceKind::cuda ? "cuda" : "cpu",
          .mpi_version = mpi_version(),
          .build = fmt::format("{}, build {}", build_name(), build_id()),
          .data_hash = data_hash};
}

}  // namespace dp
