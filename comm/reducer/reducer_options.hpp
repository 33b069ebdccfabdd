// The options of a reducer (reducer.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/prompt_gather.hpp"
#include "comm/topologies/adam_velocity.hpp"
#include "kernels/base/trace.hpp"
#include "kernels/device.hpp"

namespace dp {

struct ReducerOptions {
  std::string topology = "ring";  // of the buckets that name none (topology.hpp)
  // Every rank's host as a number, by rank; empty: by the hosts' names.
  std::vector<int> hosts = {};
  // By rank, how much of each bucket it owns, with direct (owner_weights.hpp); empty: all own as
  // much. The same on all ranks.
  std::vector<std::uint32_t> owner_weights = {};
  std::uint64_t seed = 0;
  std::size_t segment_bytes = 256u << 10;  // of fp32; rounded up to whole blocks of the codec
  std::size_t buckets_in_flight = 3;
  std::size_t window = 4;  // segments on the wire, per bucket
  // If nothing has moved for this time and a rank does not answer, the job ends. A rank that
  // answers is computing; the others wait ten times as long for it (deadline.hpp).
  double comm_timeout_s = 60.0;
  // Limits what this rank sends, and what it receives, to so many bits per second, as one link to
  // all other ranks would (throttled_transport.hpp); 0: no limit.
  double throttle_bits_per_s = 0.0;
  // The time between looks at the network while it works; 0: chosen by look_pace.hpp.
  int sleep_us = 0;
  // The device that holds the gradient and the residual; null: they are in host memory. Codecs are
  // then the device's, and message buffers are host memory that it can reach. It outlives the
  // reducer.
  Device* device = nullptr;
  // The number of threads that encode, including the reducer's own (codec_threads.hpp); 0: chosen
  // by this rank's cores.
  std::size_t codec_threads = 0;
  // If set, the thread calls it at every look to ask whether the oldest bucket that is not final
  // has become final, and bucket_ready is not called. From begin_step on it answers for that step.
  std::function<bool(std::size_t bucket)> is_final = {};
  // SGD's momentum, for buckets that send velocities; dgc has one of its own.
  float momentum = 0.0f;
  bool has_nesterov = false;
  // If set, these buckets send Adam's steps instead (adam_velocity.hpp).
  std::optional<AdamVelocityOptions> adam = {};
  // The thread calls it when a bucket's sum is in place, for one bucket after the other, before
  // wait_step returns. It is not known then whether the step is finite.
  std::function<void(std::size_t bucket)> on_delivered = {};
  // The thread calls it first, to make a GPU its current one.
  std::function<void()> thread_start = {};
  // The GPU that is_final asks for. Nothing becomes final on a GPU that has failed or stands still,
  // so the thread asks it for its failure, and lets it know that it is waited for (Device::waits).
  // Null: none.
  Device* computing = nullptr;
  // Operations that gather floats of all ranks in a step do it here: between begin_step and the
  // step's last bucket. It outlives the reducer and no longer changes its reserve(). Null: none do.
  GatherDesk* desk = nullptr;
  // Gets the slices of the thread: buckets, codecs, waits. Outlives the reducer; null: no trace.
  TraceTrack* trace = nullptr;
  // Set once this rank wishes to stop after the running step. Outlives the reducer; null: never.
  const std::atomic<bool>* stop_wish = nullptr;
  // For tests: the thread calls it between looks.
  std::function<void()> on_look = {};
};

}  // namespace dp
