// Everything that a run consists of, made and agreed by all ranks before training begins.
//
// run_setup.cpp has one function for each part; Run's constructor calls them in order. What goes
// wrong on one rank is thrown by all of them as the same AgreedError, so that they end together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/options.hpp"
#include "app/process.hpp"
#include "app/recorder.hpp"
#include "app/replica.hpp"
#include "app/run_trace.hpp"
#include "comm/communicator.hpp"
#include "comm/link_probe.hpp"
#include "io/dataset.hpp"
#include "io/loader.hpp"
#include "io/run_choices.hpp"
#include "kernels/device.hpp"
#include "net/schedule.hpp"

namespace dp {

// The parts refer to each other, so that a Run stays where it was made.
struct Run {
  // Collective. From its end on the thread of the replica's reducer owns the communicator.
  Run(const Options& run_options, Communicator& communicator);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Without an exchange every rank trains a model of its own.
  [[nodiscard]] bool exchanges() const { return options.exchange && comm.size() > 1; }
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(options.seed); }

  const Options& options;
  Communicator& comm;
  CpuShare share;
  std::unique_ptr<Device> device;
  std::string why_no_gpu;  // where --device auto looked for one in vain
  Dataset data;
  std::uint64_t data_hash = 0;  // content_hash(data)
  std::size_t global_batch = 0;
  RunChoices choices;  // with --autotune FILE.h5
  LinkProbe link;      // zeros where nothing is exchanged, and with --autotune off
  std::unique_ptr<RunTrace> trace;  // with --trace; the replica records into it
  std::unique_ptr<Replica> replica;
  std::unique_ptr<Loader> train_loader, test_loader;
  net::ScheduleOptions schedule;
  std::unique_ptr<Recorder> recorder;
};

}  // namespace dp
