// Everything that a run consists of. It is made before training begins, and all ranks agree on each
// part.
//
// run_setup.cpp has one function for each part; Run's constructor calls them in order. If something
// fails on one rank, all ranks throw the same AgreedError, so that they end together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/resume.hpp"
#include "app/options/batch_schedule.hpp"
#include "app/options/options.hpp"
#include "app/options/round_schedule.hpp"
#include "app/output/progress.hpp"
#include "app/output/recorder.hpp"
#include "app/output/run_trace.hpp"
#include "app/process/device_watch.hpp"
#include "app/process/process.hpp"
#include "app/training/replica.hpp"
#include "app/training/weights.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/network/link_probe.hpp"
#include "io/images/dataset.hpp"
#include "io/images/loader.hpp"
#include "io/log/run_choices.hpp"
#include "kernels/device.hpp"
#include "net/schedule.hpp"

namespace dp {

// Throws Error(usage) where a step of that many images, or one that --batch-schedule makes of it,
// has none for some rank. The batch is a checkpoint's if the run goes on.
void check_batches(const Options& options, std::size_t global_batch, int ranks, bool goes_on);
// Throws Error(usage) where a run of so many steps ends before --trace-steps begins.
void check_traced_steps(const Options& options, std::size_t steps);

// The parts refer to each other, so a Run cannot be moved.
struct Run {
  // A rehearsal computes a few steps for --check and --plan. Its options are not those of the run
  // that it stands for.
  enum class Purpose { training, rehearsal };

  // Collective. When it returns, the thread of the replica's reducer owns the communicator. Rank 0
  // tells `run_progress` what happens.
  Run(const Options& run_options, Communicator& communicator, Progress& run_progress,
      Purpose purpose = Purpose::training);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // The number of parts in which a rank computes its share of a step with that global batch.
  [[nodiscard]] std::size_t parts_of(std::size_t batch) const {
    const std::size_t of_all = static_cast<std::size_t>(comm.size()) * largest_part;
    return std::max(static_cast<std::size_t>(options.accumulate), (batch + of_all - 1) / of_all);
  }
  [[nodiscard]] std::size_t parts() const { return parts_of(global_batch); }
  // Evaluation has batches of the size of the run's first parts.
  [[nodiscard]] std::size_t test_batch() const {
    const auto parts = static_cast<std::size_t>(options.accumulate);
    return (global_batch + parts - 1) / parts;
  }
  // The learning rate's factor for a batch so many times as large.
  [[nodiscard]] double rate_factor(double times) const;

  // What a checkpoint says of the run, apart from the place in it.
  [[nodiscard]] CheckpointHead head();
  [[nodiscard]] RunFacts facts() const;
  // What --compress auto does where it is not told: that of the checkpoint, also on another device,
  // since velocities are a part of the state.
  [[nodiscard]] bool sends_velocities() const;

  // Without an exchange every rank trains its own model.
  [[nodiscard]] bool exchanges() const { return options.exchange && comm.size() > 1; }
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(options.seed); }

  const Options& options;
  Communicator& comm;
  Progress& progress;
  CpuShare share;
  std::optional<DeviceWatch> device_watch;  // of a GPU; sees the waits of its destructor, too
  std::unique_ptr<Device> device;
  std::size_t ranks_on_gpu = 1;  // of this host, on the same GPU as this one
  std::string why_no_gpu;        // if --device auto has found no usable GPU
  Dataset data;
  std::uint64_t data_hash = 0;        // content_hash(data)
  std::optional<ResumePoint> resume;  // where the run goes on; until its state is restored
  std::uint32_t attempt = 0;          // the number of this start of the program
  std::optional<CheckpointLock> checkpoint_lock;
  std::size_t planned_ranks = 1;  // with which the run was begun: decides the learning rate
  std::vector<std::string> resume_notes = {};  // on rank 0: what differs from the checkpoint's run
  bool has_other_schedule = false;             // --epochs or milestones= differ from it
  std::size_t global_batch = 0;                // before --batch-schedule changes it
  BatchSchedule batches;                       // the sizes of all epochs
  RoundSchedule rounds;
  std::size_t largest_part = 0;     // images that a rank computes at once
  RunChoices choices;               // with --autotune FILE.h5
  LinkProbe link;                   // zeros if nothing is exchanged, and with --autotune off
  std::unique_ptr<RunTrace> trace;  // with --trace; the replica records into it
  std::unique_ptr<Replica> replica;
  std::unique_ptr<Loader> train_loader, test_loader;
  net::ScheduleOptions schedule;
  std::unique_ptr<WeightsExporter> exporter;  // with --export, on rank 0
  std::unique_ptr<Recorder> recorder;
};

}  // namespace dp
