// Predicts the times of a training step: when each bucket's sum is in place, and how long the
// computation waits for the last sum. It is a discrete-event simulation, without clock, network or
// MPI.
//
// It simulates the reducer (reducer.hpp): every rank has one thread that carries out the message
// lists of its buckets (the same ExchangePlan), one action after the other. In a training step of
// rank r, with all times counted from the beginning of the step:
//
//     ready(r, j)       gradients of bucket j are final, while backward continues until backward(r)
//     start(r, j)       at ready(r, j), but not before bucket j-1 has started, and not while all
//                       buffer sets are in use
//     an action         encodes, decodes, takes or sends one segment; its duration is
//                         floats x (encode + decode seconds per float)
//                         + messages x message_s + their bytes x byte_s
//     a message         is carried by the ports (fluid_network.hpp): its last byte leaves when
//                       the ports have carried the message, and arrives one latency later. A rank
//                       has at most `window` segments of a bucket on the wire.
//     delivered(r, j)   the last action of bucket j is over
//     exposed(r)        max(0, max over j of delivered(r, j) - backward(r))
//     step(r)           max(backward(r), max over j of delivered(r, j)) + after(r)
//
// While backward runs, the thread takes processor time from it: an action of d seconds delays the
// rest of backward by `stolen` x d. When the thread has nothing to do, it sleeps (look_pace.hpp):
// the next event arrives at a random time during the nap, and the thread needs LookPace::kWakeUp_s
// to wake up. With a constant delay of half a nap instead of a random one, simulated steps would be
// too short: on a ring, each message waits for the later of two messages, one from the neighbour
// and one of the rank itself. The later of two random delays is longer than the mean delay. The
// random numbers are the same in every simulation. Naps can be switched off (StepSetup::sleeps).
//
// Each rank begins its next step when its own previous step is over, so a late rank delays the
// others only through the exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/network/fluid_network.hpp"
#include "comm/topologies/topology.hpp"

namespace dp {

// A codec's time on this rank's processor, and its payloads.
struct CodecCosts {
  double encode_s_per_float = 0.0;
  double decode_s_per_float = 0.0;  // decode, or decode and add
  // The payload bytes of `floats` floats of the sum, beginning at `begin`, without the message's
  // header.
  std::function<double(std::size_t begin, std::size_t floats)> payload_bytes;

  // fp32, at no cost.
  [[nodiscard]] static CodecCosts exact();
};

struct SimulatedBucket {
  // A sum over all ranks; a bucket may need several, one after the other (powersgd: two).
  struct Sum {
    std::size_t elements = 0;
    std::size_t segment = 65536;  // floats
    CodecCosts costs = CodecCosts::exact();
    bool has_brief_messages = false;
    std::size_t note_bytes = 0;  // size of the rate note in each message (RateNote)
    double before_s = 0.0;       // the thread's time before the sum's first message
  };
  std::vector<Sum> sums;
  double after_s = 0.0;  // the thread's time after the last sum is in place
};

// Times in seconds from the beginning of the rank's step, as they would be without any exchange.
struct ComputeTimes {
  std::vector<double> ready_s;  // by bucket
  double backward_end_s = 0.0;
  double after_s = 0.0;  // from the last sum to the next step's beginning: optimiser, batch
};

struct StepSetup {
  std::vector<SimulatedBucket> buckets;
  const Topology* topology = nullptr;
  NetworkPorts ports;
  std::vector<int> hosts;  // each rank's, as a number from 0
  // By rank, for topologies with owner weights (owner_weights.hpp); empty: equal parts.
  std::vector<std::uint32_t> owner_weights;
  std::size_t window = 4;  // segments of a bucket on the wire
  std::size_t buckets_in_flight = 3;
  CodecCosts exact = CodecCosts::exact();  // of messages that are always fp32
  double message_bytes = 0.0;              // extra bytes on the wire with each message
  double message_s = 0.0;                  // the thread's time for each message sent or taken
  double byte_s = 0.0;                     // the thread's time for each of their bytes
  double stolen = 0.0;
  bool sleeps = false;
  // The number of cores that all ranks' threads share, if nothing else computes. An action that
  // begins while n - 1 other threads are in actions takes max(1, n/shared_cores) times as long. 0:
  // each rank has its own core.
  double shared_cores = 0.0;
};

struct StepForecast {
  double step_s = 0.0;          // mean over the steps
  double backward_end_s = 0.0;  // this and the following: means over ranks and steps
  double exposed_s = 0.0;
  double in_flight_s = 0.0;         // from the first bucket's start until the last one is delivered
  std::vector<double> delivered_s;  // by bucket, from the beginning of the rank's step
  double sent_bytes = 0.0;          // of a rank in a step, including headers and start notices
  double most_sent_bytes = 0.0;     // maximum over ranks
};

// steps[i][r]: the times of rank r in step i. There must be at least one step, and one rank for
// each entry of setup.hosts.
[[nodiscard]] StepForecast simulate_steps(const StepSetup& setup,
                                          std::span<const std::vector<ComputeTimes>> steps);

}  // namespace dp
