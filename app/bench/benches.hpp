// The benches of dpbench. Each takes the words after its name; NAME_help() is its --help.
//
// Collective; errors are thrown as dp::Error. Rank 0 prints.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace dp {

// Training throughput of the network alone, without data and exchange: all ranks compute at the
// same time and the sum is printed.
void bench_layers(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_layers_help();

// Speed of codecs in GB/s of float, on one core or on a GPU. Rank 0 alone measures.
void bench_codec(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_codec_help();

// One table of topologies x codecs x sizes beside Open MPI's MPI_Allreduce, taken in turn.
void bench_exchange(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_exchange_help();

// Steps whose computation is a sleep, beside their prediction: the exchange of many hosts on few
// cores.
void bench_step(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_step_help();

}  // namespace dp
