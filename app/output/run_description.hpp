// The parts of a run that are needed for reports. All of them outlive the recorder (recorder.hpp),
// unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/resume.hpp"
#include "app/options/options.hpp"
#include "app/process/process.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/network/link_probe.hpp"
#include "comm/rate/compress_choice.hpp"
#include "comm/topologies/buckets.hpp"
#include "io/images/dataset.hpp"
#include "kernels/device.hpp"
#include "net/network.hpp"

namespace dp {

class RunSink;  // run_sink.hpp

struct RunDescription {
  const Options* options;
  Communicator* comm;
  CpuShare share;
  Device* device;
  std::string why_no_gpu;  // if --device auto has found no usable GPU
  net::Network* network;
  std::string exchange_path;  // "device" or "host"; empty without a GPU
  // Whether --compress auto would send velocities on a CPU, but does not in this run.
  bool only_cpus_send_velocities = false;
  std::size_t ranks_on_gpu = 1;  // ranks of this host on this rank's GPU
  LinkProbe link;                // zeros if it was not measured
  // By rank (RunPlan); empty: all ranks have the same weight.
  std::vector<std::uint32_t> owner_weights = {};
  std::size_t bucket_bytes;
  const Dataset* data;
  std::uint64_t data_hash;
  std::vector<Bucket> buckets;
  std::optional<RateLimits> rate_limits = std::nullopt;  // of --compress auto
  std::size_t global_batch, steps_per_epoch;
  const ResumePoint* resume = nullptr;  // of a resumed run; valid until the recorder exists
  RunSink* progress = nullptr;          // the console, or lines of JSON; rank 0 alone reports

  [[nodiscard]] std::string topology_of(const Bucket& bucket) const {
    return bucket.topology.empty() ? options->topology : bucket.topology;
  }
};

}  // namespace dp
