// The training run of one rank: sets everything up, trains, evaluates, records.
//
// Read trainer.cpp's step() first: it is the step of the design, each call one idea. Set-up errors
// are agreed: all ranks throw the same AgreedError before any training begins.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "app/bucket_tracker.hpp"
#include "app/options.hpp"
#include "app/process.hpp"
#include "app/recorder.hpp"
#include "app/times.hpp"
#include "comm/communicator.hpp"
#include "comm/reducer.hpp"
#include "io/dataset.hpp"
#include "io/loader.hpp"
#include "kernels/device.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"
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
  void make_device_and_data();
  void make_network();
  void prepare_batch_sizes();
  void make_exchange();

  void train_epoch(std::size_t epoch);
  void step(const Batch& batch, double data_s);
  void compute_gradients(const Batch& batch);
  void send_zero_gradients();
  void send_held_buckets();
  void update_parameters();
  [[nodiscard]] EvaluationResult evaluate();
  void average_statistics();
  void check_replicas();

  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(options_.seed); }
  [[nodiscard]] DataType activation_type() const {
    return options_.precision == Options::Precision::bf16 ? DataType::bf16 : DataType::f32;
  }

  const Options& options_;
  Communicator& comm_;
  CpuShare share_;
  std::unique_ptr<Device> device_;
  Dataset data_;
  std::unique_ptr<net::Network> network_;
  Device::Memory velocity_;
  std::unique_ptr<Loader> train_loader_, test_loader_;
  std::size_t global_batch_ = 0;
  net::ScheduleOptions schedule_;
  std::optional<BucketTracker> buckets_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Recorder> recorder_;

  std::uint64_t global_step_ = 0;
  int skipped_in_a_row_ = 0;
  net::TensorCallback tensor_final_;
  // Of the running epoch and step.
  EpochTally tally_;
  LoopTimes step_times_;
  LapClock clock_;
};

}  // namespace dp
