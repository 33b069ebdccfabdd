// The batch sizes of a run: in how many parts a rank computes each batch, and the plans that the
// network makes for it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_device.hpp"
#include "app/training/setup/run_plan.hpp"
#include "comm/mpi/communicator.hpp"
#include "io/images/dataset.hpp"

namespace dp {

// Throws Error(usage) if a rank would get no images in a step. It checks steps of `global_batch`
// images, and of every size that --batch-schedule derives from `global_batch`. In a resumed run,
// `global_batch` comes from the checkpoint.
void check_batches(const Options& options, std::size_t global_batch, std::size_t ranks,
                   bool goes_on);

// How ranks divide a step at the start of the run. Throws Error(usage) if --shares does not fit the
// number of ranks, or leaves a rank without an image. A run that is resumed with another number of
// ranks has even shares.
[[nodiscard]] Shares first_shares(const Options& options, std::size_t global_batch,
                                  std::size_t ranks, bool goes_on);

// Collective. The number of images that a rank computes at once.
[[nodiscard]] std::size_t choose_largest_part(const RunPlan& plan, Communicator& comm,
                                              const RankMachine& machine, Replica& replica);

// The run whose steps are examined. It may differ from the current run: a rehearsal, for example,
// has fewer images in a step.
struct PlannedSteps {
  const Options& options;
  std::size_t samples = 0;  // training images
  std::size_t ranks = 1;
  Shares shares = {};
  std::size_t global_batch = 0;
  std::size_t largest_part = 0;  // images that a rank computes at once; 0: all of its share
  bool goes_on = false;          // resumed from a checkpoint
};
struct SingleValues {
  bool is_error = false;  // true if it happens in every step; false: in some steps
  std::string text;
};
// The batch-normalisation layers that have only one value per channel if they get a single image.
[[nodiscard]] std::vector<std::string> norms_of_single_values(const Options& options,
                                                              const ImageSource& images);
// Looks for steps in which these layers get only a single value per channel. Returns nothing if the
// run has no such step.
[[nodiscard]] std::optional<SingleValues> find_single_values(const std::vector<std::string>& layers,
                                                             const PlannedSteps& planned);
// Call it when the parts are planned. Throws Error(usage) if batch normalisation has a single value
// in every step. Returns a warning if this happens in some steps, otherwise an empty text.
[[nodiscard]] std::string check_single_images(const RunPlan& plan, const ImageSource& images,
                                              bool goes_on);

// Collective. Plans the exchange, and the network for every batch size that will be used.
void prepare_batch_sizes(const RunPlan& plan, Communicator& comm, const Dataset& data,
                         const RankMachine& machine, bool goes_on, Replica& replica);

}  // namespace dp
