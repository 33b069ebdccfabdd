// The parts of a run's set-up that depend on a checkpoint, and the text of a checkpoint's head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/resume.hpp"
#include "app/training/setup/run_plan.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/device.hpp"

namespace dp {

struct RunCheckpoint {
  std::optional<ResumePoint> resume;  // of a resumed run, until its state is restored
  std::uint32_t attempt = 0;          // the number of this start of the program
  std::optional<CheckpointLock> lock;
  std::vector<std::string> notes = {};  // on rank 0: differences from the checkpoint's run
  bool has_other_schedule = false;      // --epochs or milestones= differ from the checkpoint's
};

// Collective, before the data are loaded. Finds the checkpoint to resume from, compares the
// checkpoint's options with the run's, and takes over choices that were made by measurement.
void find_checkpoint(RunPlan& plan, Communicator& comm, Device& device, RunCheckpoint& checkpoint);

[[nodiscard]] RunFacts collect_facts(const Communicator& comm, const Device& device,
                                     std::uint64_t data_hash);

// Collective. Compares data, build and machines with the checkpoint's (compare_facts()). Each rank
// takes over a part of the checkpoint, so its device is also compared with the device that computed
// this part. Returns the differences on rank 0.
[[nodiscard]] std::vector<std::string> compare_machine(Communicator& comm, const ResumePoint& point,
                                                       const Options& options,
                                                       const RunFacts& facts);

// The head of a checkpoint, without the entries for its place in the run.
[[nodiscard]] CheckpointHead head_of(const RunPlan& plan, const RunFacts& facts,
                                     const GradientSync& sync);

}  // namespace dp
