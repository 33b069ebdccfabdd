// The batch sizes of a run: in how many parts a rank computes them, and their plans.
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

// Throws Error(usage) where a step of that many images, or one that --batch-schedule makes of it,
// has none for some rank. The batch is a checkpoint's if the run goes on.
void check_batches(const Options& options, std::size_t global_batch, std::size_t ranks,
                   bool goes_on);

// How ranks divide a step as the run begins. Throws Error(usage) if --shares does not fit the
// number of ranks, or leaves a rank without an image. A run that goes on from a checkpoint with
// another number of ranks has even shares.
[[nodiscard]] Shares first_shares(const Options& options, std::size_t global_batch,
                                  std::size_t ranks, bool goes_on);

// Collective. How many images a rank computes at once.
[[nodiscard]] std::size_t choose_largest_part(const RunPlan& plan, Communicator& comm,
                                              const RankMachine& machine, Replica& replica);

// A run whose steps are looked at. It may be another one than that which looks: a rehearsal has
// fewer images in a step.
struct PlannedSteps {
  const Options& options;
  std::size_t samples = 0;  // training images
  std::size_t ranks = 1;
  Shares shares = {};
  std::size_t global_batch = 0;
  std::size_t largest_part = 0;  // images that a rank computes at once; 0: as many as there are
  bool goes_on = false;          // from a checkpoint
};
struct SingleValues {
  bool is_error = false;  // in every step; otherwise in some
  std::string text;
};
// The layers of batch normalisation that have one value per channel for a single image.
[[nodiscard]] std::vector<std::string> norms_of_single_values(const Options& options,
                                                              const ImageSource& images);
// Nothing if no step of the run gives one of these layers a single value.
[[nodiscard]] std::optional<SingleValues> find_single_values(const std::vector<std::string>& layers,
                                                             const PlannedSteps& planned);
// When the parts are planned. Throws Error(usage) if batch normalisation has a single value in
// every step. Returns a warning if it has in some; otherwise it is empty.
[[nodiscard]] std::string check_single_images(const RunPlan& plan, const ImageSource& images,
                                              bool goes_on);

// Collective. Plans the exchange, and the network for every batch size that will be used.
void prepare_batch_sizes(const RunPlan& plan, Communicator& comm, const Dataset& data,
                         const RankMachine& machine, bool goes_on, Replica& replica);

}  // namespace dp
