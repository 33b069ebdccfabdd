// dpbench layers: training throughput of the network alone, no data and no exchange.
#pragma once

#include "comm/communicator.hpp"

namespace dp {

// Options: --model NAME --batch N --threads N --precision fp32|bf16 --steps N --autotune on|off.
// Collective: with several ranks all compute at the same time and the sum is printed.
int bench_layers(int argc, char** argv, Communicator& comm);

}  // namespace dp
