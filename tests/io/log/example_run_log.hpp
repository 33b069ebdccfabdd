// Example facts and rows of a run log, with distinct numbers, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "io/log/run_log.hpp"
#include "kernels/base/error.hpp"

namespace dp {

inline RunInfo example_info() {
  return {.dptrain_version = "0.1.0",
          .git_revision = "abc123",
          .command_line = "dptrain --compress q8 --data-dir 'Übung/日本'",
          .mpi_version = "Open MPI 4.1.4",
          .world_size = 2,
          .hosts = {"alpha", "bêta"},
          .devices = {"cpu"},
          .codec_names = {"none", "q8"},
          .topology_names = {"ring"},
          .config = {{"model", "resnet20"}, {"lr", "0.1"}, {"data-dir", ""}},
          .model_name = "resnet20",
          .parameters = 272'474,
          .gradient_bytes = 1'089'896,
          .buckets = 3,
          .has_steps = true,
          .start_unix_s = 1'700'000'000.25};
}

// Rows in which every column has a different value.
inline TimesAndBytes example_times(double base) {
  TimesAndBytes t;
  double value = base;
  for (double* field : {&t.epoch_s, &t.data_s, &t.forward_s, &t.backward_s, &t.optimizer_s,
                        &t.compute_s, &t.encode_s, &t.wire_s, &t.decode_s, &t.peer_wait_s,
                        &t.comm_s, &t.exposed_comm_s, &t.other_s, &t.eval_s, &t.checkpoint_s}) {
    *field = value += 0.5;
  }
  t.sent_bytes = 5'000'000'000 + static_cast<std::int64_t>(base);
  t.received_bytes = 6'000'000'000 + static_cast<std::int64_t>(base);
  t.control_bytes = 9;
  t.statistics_s = 0.125;
  t.statistics_bytes = 11;
  return t;
}

inline EpochRow example_epoch(std::int64_t epoch) {
  const auto base = static_cast<double>(epoch * 1'000);
  return {.epoch = epoch,
          .samples = 12'800,
          .global_batch = 128,
          .learning_rate = 0.125,
          .train_loss = base + 1,
          .train_accuracy = 0.25,
          .test_loss = base + 2,
          .times = example_times(base + 100),
          .residual_norm = base + 3,
          .replica_hash = 0xFEDCBA9876543210u,
          .skipped_steps = 4,
          .delivered_relative_error = 0.5,
          .sample_bytes = 7,
          .saturation = 0.25,
          .exchanges = 13,
          .wire_bytes = 15.0};
}

// The message of the Error(data) that `work` throws.
template <class Work>
std::string failure(Work work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace dp
