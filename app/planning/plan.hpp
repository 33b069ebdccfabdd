// dptrain --plan: predicts how long a step takes with other codecs, topologies, numbers of ranks,
// batches and links, and says which to take and why.
//
// It computes a few steps of this run on the ranks that were started, measures the codecs on their
// gradient and the links between hosts, and simulates the rest (prediction.hpp). Nothing is
// trained, and nothing is written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

// Collective. Programs and options were compared before.
void plan_run(const Options& options, Communicator& comm);

// One line of a plan's table.
struct PlanRow {
  std::string topology, codec;
  std::size_t sync_every = 1;  // steps between two exchanges
  bool is_chosen = false;      // these, by --sync-every auto
  double step_s = 0.0, exposed_s = 0.0, compute_s = 0.0, sent_bytes = 0.0;
  // For auto: the codec that sends as it does, and its bits a value.
  std::string sent_as = {};
  double bits = 0.0;

  // "auto (0.31 bits)"
  [[nodiscard]] std::string text() const;
};

// The loss with what the row sends; nothing where no study has tried it.
[[nodiscard]] std::optional<double> loss_of_studies(const PlanRow& row);

struct PlanAdvice {
  std::size_t row = 0;
  std::string text;
};

// Chooses among the rows whose codec trains as fp32 within the spread of seeds (codec_accuracy.hpp;
// that is known of an exchange at every step, or as often as the plan has it). Those count that
// take at most kNearFastest times as long as the fastest of them, and the first of these is taken:
// the list goes from fine codecs to coarse ones. If it still waits for the network, the text says
// what would help. Needs at least one row.
inline constexpr double kNearFastest = 1.05;
[[nodiscard]] PlanAdvice advise(const std::vector<PlanRow>& rows);

}  // namespace dp
