// The data set `folder`: images in a folder for each class (image_tree.hpp), or a pack of them
// (image_pack.hpp). Both give the same images, bit for bit.
//
// Network's size: the requested size; otherwise the images' size, if all are squares of one size up
// to 64 pixels; otherwise 224.
// Training: if all images have the network's size, they are shifted by up to 4 pixels
// (augment.hpp); otherwise a random part of each image is scaled to the network's size
// (image_crop.hpp). Testing: image_crop.hpp.
// Test images: the folder "val" or "test". Without either, a share of each class is taken from the
// training images: the images with the smallest hashes of (split seed, class and name), so every
// run and every host takes the same images.
// Normalisation: as given; otherwise the mean and deviation of up to 1,000 training images, spread
// evenly over the list and prepared as for testing. The sums are whole numbers, so every rank gets
// the same result.
#pragma once

#include <string>

#include "io/images/dataset.hpp"

namespace dp {

[[nodiscard]] Dataset load_image_folder(const DatasetRequest& request);

[[nodiscard]] bool is_image_folder_or_pack(const std::string& path);

inline constexpr std::size_t kMeasuredImages = 1'000;
inline constexpr double kUsualValidationShare = 0.1;

// Mean and deviation of all pixels of up to kMeasuredImages images, rounded to the 4 digits that
// are printed. If an image cannot be decoded, the source's `bad_images` decides whether it is
// replaced or the call throws.
[[nodiscard]] Normalization measure_normalization(const ImageSource& source, std::size_t threads);

}  // namespace dp
