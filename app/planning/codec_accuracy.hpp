// What codecs did to training in this project's studies: small tables, and nothing that a plan
// measures.
//
// Source: experiments/README.md, "What codecs do to training" and, for ecq and auto, "Learning per
// byte" and "ecq and auto": ResNet-20 with 1x1 shortcuts, 20,000 images of CIFAR-10, 6 epochs of
// one cycle with peak 0.2, 4 ranks x 32. The number is the last epoch's training loss, divided by
// fp32's, whose mean over three seeds is 0.855 (0.845 to 0.873), and for ecq 0.872 (0.853 to 0.887)
// on another machine: seeds are 3 to 4 % apart. ecq has the mean of three seeds where the tables
// say so, others have one run: a loss below fp32's says no more than that it is within the spread
// of seeds. Another model, longer training, more ranks or a warm-up gives other numbers.
#pragma once

#include <optional>
#include <string>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// Two runs with different seeds are that far apart.
inline constexpr double kSpreadOfSeeds = 0.03;

// The loss divided by fp32's; nothing where no study had that codec with those settings. is_even: a
// codec with bits= sends as many in every step, as with auto, and not by the plan of a run.
[[nodiscard]] std::optional<double> loss_of_studies(const CodecSpec& codec,
                                                    const std::string& topology,
                                                    bool is_even = false);

}  // namespace dp
