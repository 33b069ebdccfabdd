// The model's results on the test images, between epochs. Nothing here changes the weights.
#pragma once

#include "app/options/options.hpp"
#include "app/output/recorder.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/setup/weights.hpp"
#include "io/images/loader.hpp"
#include "io/images/shares.hpp"

namespace dp {

// Collective. Sets the statistics for evaluation to the mean of all ranks' running statistics,
// weighted by the ranks' shares. Each rank's own statistics do not change.
void average_statistics(Replica& replica, const Shares& shares);

// Collective. Uses the averaged weights, if the run has any, and the mean over ranks of the running
// statistics.
[[nodiscard]] EvaluationResult evaluate(Replica& replica, Loader& images, const Shares& shares);

// Collective. Test-time augmentation (--test-augment): every image is shown several times, and the
// logits are averaged before the loss is computed and the class chosen.
//     mirror   the image and its mirror image, with equal weights
//     shift    the image and its mirror image share one half of the weight. The other half goes to
//              four more images: the image moved by a pixel up and left, the image moved by a
//              pixel down and right, and the mirror image of each. --augment on:fill= decides
//              which pixels come in at the edges
[[nodiscard]] EvaluationResult evaluate_augmented(const Options& options, Replica& replica,
                                                  Loader& images, const Shares& shares);

// All tensors as evaluate() uses them. Not collective; the statistics are from the last call of
// average_statistics() or evaluate().
[[nodiscard]] WeightSet collect_evaluated_weights(Replica& replica);

}  // namespace dp
