// The parts of a run. They are made before training begins, and all ranks agree on each of them.
//
// run_setup.cpp has one function for each part; Run's constructor calls them in order. If something
// fails on one rank, all ranks throw the same AgreedError, so that they end together.
#pragma once

#include <cstddef>
#include <memory>

#include "app/checkpoint/fingerprint.hpp"
#include "app/output/recorder.hpp"
#include "app/output/run_sink.hpp"
#include "app/output/run_trace.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_checkpoint.hpp"
#include "app/training/setup/run_device.hpp"
#include "app/training/setup/run_plan.hpp"
#include "app/training/setup/weights.hpp"
#include "comm/mpi/communicator.hpp"
#include "io/images/dataset.hpp"
#include "io/images/loader.hpp"

namespace dp {

// Throws Error(usage) if a run of that many steps ends before --trace-steps begins.
void check_traced_steps(const Options& options, std::size_t steps);

// The parts refer to each other, so a Run cannot be moved.
struct Run {
  // A rehearsal computes a few steps for --check and --plan. Its options differ from those of the
  // real run.
  enum class Purpose { training, rehearsal };

  // Collective. Afterwards the thread of the replica's reducer owns the communicator. Rank 0
  // reports events to `progress`.
  Run(const Options& options, Communicator& communicator, RunSink& progress,
      Purpose purpose = Purpose::training);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Communicator& comm;
  RunPlan plan;
  RankMachine machine;
  RunCheckpoint checkpoint;
  Dataset data;
  RunFacts facts;
  std::unique_ptr<RunTrace> trace;  // with --trace; the replica records into it
  std::unique_ptr<Replica> replica;
  std::unique_ptr<Loader> train_loader, test_loader;
  std::unique_ptr<WeightsExporter> exporter;  // with --export, on rank 0
  std::unique_ptr<Recorder> recorder;
};

}  // namespace dp
