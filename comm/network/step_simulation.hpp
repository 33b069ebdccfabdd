// Predicts a step: when each bucket's sum is in place, and how long the computation waits for the
// last one. A simulation of discrete events, without clock, network or MPI.
//
// What is simulated is what the reducer does (reducer.hpp): every rank has one thread that carries
// out the lists of messages of its buckets (ExchangePlan: the same lists), one action after the
// other. In a step of rank r, all times from its begin:
//
//     ready(r, j)       gradients of bucket j are final, while backward goes on until backward(r)
//     start(r, j)       at ready(r, j), but not before bucket j-1 has started, and not while as
//     many
//                       buckets as there are buffer sets are on their way
//     an action         encodes, decodes, takes or sends one segment and takes
//                         floats x (encode + decode seconds per float)
//                         + messages x message_s + their bytes x byte_s
//     a message         is carried by the ports (fluid_network.hpp): its last byte leaves when they
//                       have carried it and arrives one latency later. A rank has at most `window`
//                       segments of a bucket on the wire.
//     delivered(r, j)   the last action of bucket j is over
//     exposed(r)        max(0, max over j of delivered(r, j) - backward(r))
//     step(r)           max(backward(r), max over j of delivered(r, j)) + after(r)
//
// While backward runs, the thread takes processor time from it: an action of d seconds delays all
// that backward has still to do by `stolen` x d. Where the thread finds nothing to do it sleeps
// (look_pace.hpp): the next event comes at a random time of its nap, after which the thread takes
// LookPace::kWakeUp_s. On a ring each message follows from one of a neighbour and one of its own.
// The later one counts, so half a nap for each would make steps too short. The random numbers are
// the same in every simulation. Naps can be switched off.
//
// Ranks begin their next step when their own last one is over, so a late rank delays the others
// through the exchange alone.
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

// What a codec costs on this rank's processor, and what it sends.
struct CodecCosts {
  double encode_s_per_float = 0.0;
  double decode_s_per_float = 0.0;  // decode, or decode and add
  // The bytes of a payload of so many floats of the sum, from that one on, without the message's
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
    std::size_t note_bytes = 0;  // behind the header of each message (RateNote)
    double before_s = 0.0;       // of the thread, before its first message
  };
  std::vector<Sum> sums;
  double after_s = 0.0;  // of the thread, when the last sum is there
};

// Seconds from the begin of the rank's step, without any exchange.
struct ComputeTimes {
  std::vector<double> ready_s;  // by bucket
  double backward_end_s = 0.0;
  double after_s = 0.0;  // from the last sum to the begin of the next step: optimiser, batch
};

struct StepSetup {
  std::vector<SimulatedBucket> buckets;
  const Topology* topology = nullptr;
  NetworkPorts ports;
  std::vector<int> hosts;  // each rank's, as a number from 0
  // By rank, with a topology that has them (owner_weights.hpp); empty: all alike.
  std::vector<std::uint32_t> owner_weights;
  std::size_t window = 4;  // segments of a bucket on the wire
  std::size_t buckets_in_flight = 3;
  CodecCosts exact = CodecCosts::exact();  // of messages that are fp32 whatever the codec is
  double message_bytes = 0.0;              // on the wire with each message, beside what is sent
  double message_s = 0.0;                  // of the thread, for each message sent or taken
  double byte_s = 0.0;                     // of the thread, for each of their bytes
  double stolen = 0.0;
  bool sleeps = false;
  // That all ranks' threads share, while nothing else computes: an action takes as much longer as
  // more threads than these act at its begin. 0: each rank has its own.
  double shared_cores = 0.0;
};

struct StepForecast {
  double step_s = 0.0;          // mean over the steps
  double backward_end_s = 0.0;  // from here on: means over ranks and steps
  double exposed_s = 0.0;
  std::vector<double> delivered_s;  // by bucket, from the begin of the rank's step
  double sent_bytes = 0.0;          // of one rank in a step, with headers and start notices
  double most_sent_bytes = 0.0;     // of the rank that sends most
};

// `steps` has for each step the times of every rank. At least one step, and as many ranks as
// `hosts`.
[[nodiscard]] StepForecast simulate_steps(const StepSetup& setup,
                                          std::span<const std::vector<ComputeTimes>> steps);

}  // namespace dp
