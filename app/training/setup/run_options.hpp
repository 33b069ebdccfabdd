// Translates the options of a training run into those of the libraries.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/round_schedule.hpp"
#include "app/training/replica/replica.hpp"
#include "io/images/augment.hpp"
#include "net/optimizer.hpp"
#include "net/parameter_groups.hpp"
#include "net/schedule.hpp"

namespace dp {

[[nodiscard]] net::OptimizerOptions optimizer_options(const Options& options);
// Whether --compress auto sends velocities (comm/topologies/velocity.hpp) if velocity= is not
// given. It does so if ranks exchange at every step and the exchange can apply the optimiser's
// momentum. The same number of bits then gives a better model (experiments/studies/velocity.md).
// With Adam on a GPU it does not: Adam's moments would have to be in the host's memory, and the
// host would need more time for them than for the codec.
[[nodiscard]] bool auto_sends_velocities(const Options& options, DeviceKind device);
[[nodiscard]] net::GroupOptions group_options(const Options& options);
// scaling: the factor for --lr.
[[nodiscard]] net::ScheduleOptions schedule_options(const Options& options, double scaling,
                                                    std::size_t steps_per_epoch);

// Both return nothing with --augment off. The second one also checks that the rule can be applied
// to images of this shape.
[[nodiscard]] std::optional<AugmentationRule> augmentation_rule(const Options& options);
[[nodiscard]] std::optional<AugmentationRule> augmentation_rule(const Options& options,
                                                                const ImageShape& shape);
// Returns nothing if gradients are exchanged at every step.
[[nodiscard]] std::optional<RoundOptions> round_options(const Options& options,
                                                        const RoundSchedule& rounds,
                                                        std::size_t ranks);

// Splits a comma-separated list into names, and leaves out empty ones.
[[nodiscard]] std::vector<std::string> names_in(const std::string& list);

}  // namespace dp
