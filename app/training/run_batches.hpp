// The batch sizes of a run: in how many parts a rank computes them, and their plans.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>
#include "app/training/run_setup.hpp"

namespace dp {

// Collective. Decides run.largest_part.
void plan_parts(Run& run);

// A run whose steps are looked at. It may be another one than that which looks: a rehearsal has
// fewer images in a step.
struct PlannedSteps {
  const Options& options;
  std::size_t samples = 0;  // training images
  std::size_t ranks = 1;
  std::size_t global_batch = 0;
  std::size_t largest_part = 0;  // images that a rank computes at once; 0: as many as there are
  bool goes_on = false;          // from a checkpoint
};
struct SingleValues {
  bool is_error = false;  // in every step; otherwise in some
  std::string text;
};
// The layers of batch normalisation that have one value per channel for a single image.
[[nodiscard]] std::vector<std::string> norms_of_single_values(const Run& run);
// Nothing if no step of the run gives one of these layers a single value.
[[nodiscard]] std::optional<SingleValues> find_single_values(const std::vector<std::string>& layers,
                                                             const PlannedSteps& planned);
// When the parts are planned. Throws Error(usage) if batch normalisation has a single value in
// every step, and warns on rank 0 if it has in some.
void check_single_images(Run& run);

// Collective. Plans the exchange, and the network for every batch size that will be used.
void prepare_batch_sizes(Run& run);

}  // namespace dp
