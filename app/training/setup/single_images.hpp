// Finds training steps in which batch normalisation works on a single image. If the layer's map is
// 1x1, too, it has only one value per channel, and the step trains on constants
// (net/single_values.hpp).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/images/shares.hpp"

namespace dp {

// How a run divides its images. Batch normalisation takes the images of one rank's part of a step
// or, with sync_bn, of the equally numbered parts of all ranks.
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

// Finds steps in which a rank, or with sync_bn all ranks together, have a part of a single image.
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

// One sentence about the result of find_single_images(), which names the option that is the cause.
// It is the text of an error if every step is affected, and otherwise of a warning. layers: those
// with maps of 1x1, at least one.
[[nodiscard]] std::string describe_single_images(const SingleImages& found,
                                                 const ImageDivision& division,
                                                 const std::vector<std::string>& layers,
                                                 const SingleImageRemedies& remedies);

}  // namespace dp
