// The codecs, topologies and steps between exchanges that --plan compares: those that its options
// name, or its own choice. Combinations that a run refuses are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/planning/prediction.hpp"
#include "app/training/share_plan.hpp"

namespace dp {

// The codecs of the table, each once: those of codecs=, or else all that the run's optimiser
// allows, auto, and the run's own.
[[nodiscard]] std::vector<CompressChoice> codecs_of(const Options& options);
// The topologies of topologies=, or else those that suit the number of ranks.
[[nodiscard]] std::vector<std::string> topologies_of(const Options& options, std::size_t ranks);
// Steps between two exchanges: those of sync=, or else the run's.
[[nodiscard]] std::vector<std::size_t> sync_lengths(const Options& options);
// The longest round that --sync-every auto may choose; 0 if the plan does not predict its choice.
[[nodiscard]] std::size_t most_steps_of_auto(const Options& options);

// can_be_in_rounds(): whether a run with rounds accepts the codec. can_run(): whether a run accepts
// all three.
[[nodiscard]] bool can_be_in_rounds(const CodecSpec& codec);
[[nodiscard]] bool can_run(const CodecSpec& codec, const std::string& topology,
                           std::size_t sync_every);
// By rank, the images of a run's first steps: as --shares says or, with auto, as the rehearsed
// steps suggest; empty: even shares. factor: a rank's mean images divided by the images of a
// rehearsed step. Ranks beyond the measured ones repeat these in turn.
[[nodiscard]] std::vector<std::size_t> planned_images(const Options& options,
                                                      const Calibration& calibration,
                                                      const ShareFacts& facts, std::size_t ranks,
                                                      std::size_t global_batch, double factor);
// By rank, its part of each bucket with topology direct, from the rates of the ranks' links. Empty:
// all alike, or the rates were not measured for single ranks.
[[nodiscard]] std::vector<std::uint32_t> planned_owners(const Options& options,
                                                        std::vector<double> own_bytes_per_s);

// A text about what the table leaves out; empty if nothing. Throws Error(usage) if it leaves out
// everything.
[[nodiscard]] std::string left_out(const Options& options);

}  // namespace dp
