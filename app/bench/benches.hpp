// The benches of dpbench. Each takes the words after its name; NAME_help() returns its --help.
//
// Collective; errors are thrown as dp::Error. Rank 0 prints.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace dp {

// Training throughput of the network alone, without data and exchange. All ranks compute at the
// same time; prints the sum over ranks.
void bench_layers(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_layers_help();

// Speed of codecs in GB/s of float, on one core or on a GPU. Rank 0 alone measures.
void bench_codec(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_codec_help();

// One table of topologies x codecs x sizes, measured alternately with Open MPI's MPI_Allreduce.
void bench_exchange(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_exchange_help();

// Measured and predicted time of steps whose computation is a sleep, so that a few cores can stand
// in for many hosts.
void bench_step(const std::vector<std::string>& arguments, Communicator& comm);
[[nodiscard]] std::string bench_step_help();

}  // namespace dp
