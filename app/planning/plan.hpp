// dptrain --plan: predicts the time of a step with other codecs, topologies, numbers of ranks,
// batches and links, and ranks the choices by time and bytes (plan_table.hpp).
//
// It computes a few steps of this run on the ranks that were started. It measures the codecs on the
// gradient of these steps, measures the links between hosts, and simulates the rest
// (prediction.hpp). Nothing is trained and nothing is written.
#pragma once

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Collective. Call it after programs and options have been compared.
void plan_run(const Options& options, Communicator& comm);

}  // namespace dp
