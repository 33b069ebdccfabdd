// Finds training steps in which batch normalisation works on a single image. If the layer's feature
// map is also 1x1, the layer has only one value per channel, and the step trains on constants
// (net/single_values.hpp).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/images/shares.hpp"

namespace dp {

// How a run divides its images. A rank computes its images in numbered parts, one after the other.
// Batch normalisation works on one part of one rank or, with sync_bn, on the parts of all ranks
// that have the same number.
struct ImageDivision {
  struct Batch {
    std::size_t images;         // of all ranks in a step; the last step of an epoch may have fewer
    std::size_t parts;          // the number of parts in which a rank computes its share
    bool is_scheduled = false;  // whether --batch-schedule decides the batch
  };
  std::size_t samples = 0;  // training images
  std::size_t ranks = 1;
  Shares shares = {};
  bool sync_bn = false;
  std::vector<Batch> batches = {};  // all that occur in the run
};

struct SingleImages {
  enum class Where { nowhere, in_some_steps, in_every_step };

  Where where = Where::nowhere;
  // The batch for which the fraction of steps with a single image is largest in an epoch.
  ImageDivision::Batch batch = {0, 1};
  std::size_t single_steps = 0, steps = 0;  // of an epoch with that batch
};

// Finds steps in which a part has only a single image on one rank or, with sync_bn, on all ranks
// together.
[[nodiscard]] SingleImages find_single_images(const ImageDivision& division);

// The options that decide the division, and which of them the user can change.
struct SingleImageRemedies {
  std::string batch = "--batch-size";  // or --global-batch
  std::size_t batch_value = 0;
  std::string batch_schedule = "fixed";
  std::size_t accumulate = 1;
  bool can_sync_bn = true;  // the run exchanges gradients at every step
  bool has_image_size = false;
  bool goes_on = false;  // from a checkpoint: only the number of ranks can change
};

// Describes the result of find_single_images() in one sentence, which names the option at fault.
// The sentence is an error message if every step is affected, and otherwise a warning. `layers` has
// at least one entry: the layers with maps of 1x1.
[[nodiscard]] std::string describe_single_images(const SingleImages& found,
                                                 const ImageDivision& division,
                                                 const std::vector<std::string>& layers,
                                                 const SingleImageRemedies& remedies);

}  // namespace dp
