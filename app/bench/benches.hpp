// The benches of dpbench. Each function takes the words after the bench's name; NAME_help() returns
// the text of --help.
//
// All benches are collective, and throw errors as dp::Error. Rank 0 prints.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace dp {

// Measures the training throughput of the network alone, without data and exchange. All ranks
// compute at the same time; the result is the sum of their throughputs.
void bench_layers(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_layers_help();

// Measures the speed of codecs in GB/s of float, on one core or on a GPU. Rank 0 alone measures.
void bench_codec(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_codec_help();

// Measures every combination of topology, codec and size in turn with Open MPI's MPI_Allreduce, and
// prints one table.
void bench_exchange(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_exchange_help();

// Measures and predicts the time of steps whose computation is a sleep, so that a few cores can
// stand in for many hosts.
void bench_step(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_step_help();

}  // namespace dp
