// Trained weights in an HDF5 file for other programs (--export, --init).
//
//     /            attributes: format ("dptrain weights 1"), model, classes, channels, height,
//                  width, mean, deviation (of pixels scaled to [0, 1]), dptrain_version
//     /last/NAME   float32, one data set for each tensor under its torch name, in torch's order
//                  (OIHW for kernels); running statistics are the means over all ranks
//     /best/NAME   like /last/NAME, for the epoch with the best test accuracy. If that is the last
//                  epoch, /best is another name of the group /last.
// Both groups have the attributes epoch (from 0), test_accuracy (a fraction) and test_loss.
//
// experiments/weights.py converts between these files and PyTorch's state dicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/pixels.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {

struct WeightTensor {
  std::string name;  // "layer1.0.conv1.weight"
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

// The weights after an epoch.
struct WeightSet {
  std::int64_t epoch = 0;  // from 0
  double test_accuracy = 0, test_loss = 0;
  std::vector<WeightTensor> tensors;
};

struct WeightsFile {
  std::string model;
  std::size_t classes = 0;
  ImageShape image;
  Normalization normalization;
  WeightSet last;
  std::optional<WeightSet> best;  // none: the last epoch is the best
};

// Writes a new file beside `path`, syncs it to the disk and renames it, so that `path` always holds
// a whole file. If `replaces` is true, `path` must be a file that an earlier call wrote. If it is
// false, `path` must not exist. Throws Error(data).
void write_weights(const std::string& path, const WeightsFile& weights, bool replaces);

enum class WhichWeights { best, last };

// Throws SettingError(data) if the file is missing, damaged or not a weights file. `setting` is the
// option that the path comes from.
[[nodiscard]] WeightsFile read_weights(const std::string& path, WhichWeights which,
                                       Setting setting = Setting{"initial weights"});

}  // namespace dp
