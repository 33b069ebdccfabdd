// The codecs, topologies and steps between exchanges that --plan compares. The user names them with
// --plan's options; otherwise --plan chooses. Combinations that a run refuses are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/planning/prediction.hpp"
#include "app/training/share_plan.hpp"

namespace dp {

// The codecs of the table, each once. The user names them with codecs=. Without codecs=, they are
// all codecs that the run's optimiser allows, "auto", and the run's own codec.
[[nodiscard]] std::vector<CompressChoice> codecs_of(const Options& options);
// The topologies of topologies= or, without it, those that suit the number of ranks.
[[nodiscard]] std::vector<std::string> topologies_of(const Options& options, std::size_t ranks);
// The numbers of steps between two exchanges: those of sync= or, without it, the run's own.
[[nodiscard]] std::vector<std::size_t> sync_lengths(const Options& options);
// The longest round that --sync-every auto may choose; 0 if the plan does not predict what "auto"
// would choose.
[[nodiscard]] std::size_t most_steps_of_auto(const Options& options);

// can_be_in_rounds(): whether a run with rounds accepts the codec. can_run(): whether a run accepts
// the combination.
[[nodiscard]] bool can_be_in_rounds(const CodecSpec& codec);
[[nodiscard]] bool can_run(const CodecSpec& codec, const std::string& topology,
                           std::size_t sync_every);
// The images of each rank in a run's first steps, as --shares says. With --shares auto, they follow
// from the rehearsed steps. Empty: even shares. factor: a rank's mean images divided by the images
// of a rehearsed step. If there are more ranks than were measured, the measured ranks are repeated
// in turn.
[[nodiscard]] std::vector<std::size_t> planned_images(const Options& options,
                                                      const Calibration& calibration,
                                                      const ShareFacts& facts, std::size_t ranks,
                                                      std::size_t global_batch, double factor);
// The part of each bucket that each rank owns with the topology "direct", from the bandwidths of
// the ranks' links. Empty: all parts have the same size, or the bandwidths of single ranks were not
// measured.
[[nodiscard]] std::vector<std::uint32_t> planned_owners(const Options& options,
                                                        std::vector<double> own_bytes_per_s);

// Says which combinations the table leaves out. Returns an empty text if the table has all of them.
// Throws Error(usage) if no combination is left.
[[nodiscard]] std::string left_out(const Options& options);

}  // namespace dp
