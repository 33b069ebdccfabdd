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
  std::string topology = "ring";  // for buckets that do not name one (topology.hpp)
  // Every rank's host as a number, by rank; empty: derived from the hosts' names.
  std::vector<int> hosts = {};
  // For direct: the weight of each rank's part of every bucket, by rank (owner_weights.hpp); empty:
  // equal parts. The same on all ranks.
  std::vector<std::uint32_t> owner_weights = {};
  std::uint64_t seed = 0;
  std::size_t segment_bytes = 256u << 10;  // of fp32; rounded up to whole blocks of the codec
  std::size_t buckets_in_flight = 3;
  std::size_t window = 4;  // segments on the wire, per bucket
  // The job ends if nothing has moved for this time and a rank does not answer. A rank that answers
  // is still computing, and the others wait for it ten times as long (deadline.hpp).
  double comm_timeout_s = 60.0;
  // Limits sending and receiving to this many bits per second each, like one link to all other
  // ranks (throttled_transport.hpp); 0: no limit.
  double throttle_bits_per_s = 0.0;
  // The time between looks at the network while buckets are in flight; 0: chosen by look_pace.hpp.
  int sleep_us = 0;
  // The device that holds the gradient and the residual; null: they are in host memory. With a
  // device, codecs run on it, and message buffers are host memory that the device can access. The
  // device outlives the reducer.
  Device* device = nullptr;
  // The number of threads that encode, including the reducer's own (codec_threads.hpp); 0: chosen
  // from this rank's cores.
  std::size_t codec_threads = 0;
  // If set, the thread calls it at every look for the oldest bucket that was not final yet, and
  // bucket_ready is not called. From begin_step(s) on, its answers must be about step s.
  std::function<bool(std::size_t bucket)> is_final = {};
  // SGD's momentum, for buckets that send velocities (velocity=); dgc's momentum is a key of its
  // codec.
  float momentum = 0.0f;
  bool has_nesterov = false;
  // If set, the buckets that send velocities send Adam's steps instead (adam_velocity.hpp).
  std::optional<AdamVelocityOptions> adam = {};
  // The thread calls it when a bucket's sum is in place, in the order of the buckets, before
  // wait_step returns. Whether the step is finite is not known yet.
  std::function<void(std::size_t bucket)> on_delivered = {};
  // The thread calls it first of all, to select its GPU.
  std::function<void()> thread_start = {};
  // The GPU whose progress is_final reports. The thread checks it for failures and registers waits
  // for it (gpu_watch.hpp). Null: none.
  Device* computing = nullptr;
  // Operations of forward and backward gather floats of all ranks at this desk, between begin_step
  // and the step's last bucket. The desk outlives the reducer, and its reserve() must not be called
  // any more. Null: no gathering.
  GatherDesk* desk = nullptr;
  // Receives the slices of the thread: buckets, codecs, waits. Outlives the reducer; null: no
  // trace.
  TraceTrack* trace = nullptr;
  // Set once this rank wishes to stop after the running step. Outlives the reducer; null: never.
  const std::atomic<bool>* stop_wish = nullptr;
  // For tests: the thread calls it between looks.
  std::function<void()> on_look = {};
};

}  // namespace dp
