// The training run of one rank: sets everything up, trains, evaluates, records.
//
// Read trainer.cpp's step() first: it is the step of the design, each call one idea. Set-up errors
// are agreed: all ranks throw the same AgreedError before any training begins.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/options.hpp"
#include "app/process.hpp"
#include "app/recorder.hpp"
#include "app/replica.hpp"
#include "app/run_trace.hpp"
#include "app/times.hpp"
#include "comm/communicator.hpp"
#include "io/dataset.hpp"
#include "io/loader.hpp"
#include "io/run_choices.hpp"
#include "kernels/device.hpp"
#include "net/schedule.hpp"

namespace dp {

class Trainer {
 public:
  // Collective.
  Trainer(const Options& options, Communicator& comm);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective: the whole run, log closed at its end.
  void run();

 private:
  // Set-up, in this order. Collective, each agreed by all ranks.
  void choose_device();
  void agree_on_device();
  void load_data();
  void agree_on_data();
  void measure_network();
  void make_replica();
  void prepare_batch_sizes();
  void make_recorder();

  void train_epoch(std::size_t epoch);
  void step(double data_s, bool is_last);
  double load_next();
  [[nodiscard]] EvaluationResult evaluate();
  void average_statistics();
  void check_replicas();
  void write_trace();

  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(options_.seed); }
  [[nodiscard]] DataType activation_type() const {
    return options_.precision == Options::Precision::bf16 ? DataType::bf16 : DataType::f32;
  }

  [[nodiscard]] bool exchanges() const { return options_.exchange && comm_.size() > 1; }
  [[nodiscard]] std::size_t bucket_bytes() const;

  const Options& options_;
  Communicator& comm_;
  CpuShare share_;
  LinkProbe link_;      // zeros where nothing is exchanged, and with --autotune off
  RunChoices choices_;  // with --autotune FILE.h5
  std::unique_ptr<Device> device_;
  Dataset data_;
  std::uint64_t data_hash_ = 0;      // content_hash(data_)
  std::string why_no_gpu_;           // for --device auto
  std::unique_ptr<RunTrace> trace_;  // with --trace; the replica records into it
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<Loader> train_loader_, test_loader_;
  std::size_t global_batch_ = 0;
  net::ScheduleOptions schedule_;
  std::unique_ptr<Recorder> recorder_;

  std::uint64_t global_step_ = 0;
  int skipped_in_a_row_ = 0;
  // The batch that was taken from the loader and not computed on yet.
  bool is_loaded_ = false;
  std::size_t loaded_global_samples_ = 0;
  EpochTally tally_;  // of the running epoch
};

}  // namespace dp
