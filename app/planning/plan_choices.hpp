// What --plan compares: the codecs, topologies and steps between exchanges that its options name or
// leave to it, without those that a run refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/planning/prediction.hpp"
#include "app/training/share_plan.hpp"

namespace dp {

// The codecs of the table, each once: codecs=, or all that the run's optimiser allows, auto
// and the run's own.
[[nodiscard]] std::vector<CompressChoice> codecs_of(const Options& options);
// The topologies that topologies= names, or else those that suit the number of ranks.
[[nodiscard]] std::vector<std::string> topologies_of(const Options& options, std::size_t ranks);
// Steps between exchanges: those of sync=, or the run's.
[[nodiscard]] std::vector<std::size_t> sync_lengths(const Options& options);
// 0 where the plan does not ask what --sync-every auto would choose.
[[nodiscard]] std::size_t most_steps_of_auto(const Options& options);

// Whether a run with rounds takes the codec; whether a run takes all three.
[[nodiscard]] bool can_be_in_rounds(const CodecSpec& codec);
[[nodiscard]] bool can_run(const CodecSpec& codec, const std::string& topology,
                           std::size_t sync_every);
// By rank, the images of a run's first steps, as --shares says or, with auto, as the rehearsed
// steps do; empty: even ones. factor: a rank's mean images over those of a rehearsed step. Ranks
// beyond those measured are as these, by turns.
[[nodiscard]] std::vector<std::size_t> planned_images(const Options& options,
                                                      const Calibration& calibration,
                                                      const ShareFacts& facts, std::size_t ranks,
                                                      std::size_t global_batch, double factor);
// By rank, how much of a bucket it would own with direct, from the rates of the ranks' links;
// empty: all alike, or rates were not told apart.
[[nodiscard]] std::vector<std::uint32_t> planned_owners(const Options& options,
                                                        std::vector<double> own_bytes_per_s);

// Says what the table leaves out; empty if nothing. Throws Error(usage) if that is all.
[[nodiscard]] std::string left_out(const Options& options);

}  // namespace dp
