// The built-in data set: ten classes of drawn shapes and textures, 32x32 pixels, in colour, with
// noise.
//
// The classes are six shapes (disc, ring, square, diamond, triangle, cross) and four textures (flat
// stripes, steep stripes, checker, dots). They appear at random places, sizes and angles, in random
// colours on a random ground, partly hidden and noisy. Some classes resemble each other on purpose:
// disc and ring, square and diamond, the two stripes, checker and dots. A horizontal flip changes
// no class. Colours carry no label, so a linear classifier is poor. Classes are balanced: image i
// shows class i mod 10.
//
// Image i of a split is a pure function of (seed, split, i) that uses only +, -, *, / and square
// roots, so every machine draws the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/images/dataset.hpp"

namespace dp {

inline constexpr std::size_t kSyntheticTrain = 12'800;
inline constexpr std::size_t kSyntheticTest = 2'000;
inline constexpr std::size_t kSyntheticClasses = 10;
inline constexpr ImageShape kSyntheticShape{.height = 32, .width = 32};

// The values are part of the random key: other values would draw other images.
enum class Split : std::uint64_t { train = 0, test = 1 };

[[nodiscard]] std::vector<std::string> synthetic_class_names();

// Draws image `index` into `pixels` (kSyntheticShape, planar); returns its label.
std::int32_t draw_synthetic(std::uint64_t seed, Split split, std::size_t index,
                            std::span<std::uint8_t> pixels);

// Draws `count` images with `threads` threads (at least 1). The result does not depend on the
// number of threads.
[[nodiscard]] ImageSet make_synthetic(Split split, std::size_t count, std::uint64_t seed,
                                      std::size_t threads = 1,
                                      const Normalization& normalization = {});

// Makes the data set with kSyntheticTrain and kSyntheticTest images, or with the numbers that the
// request gives.
[[nodiscard]] Dataset load_synthetic(const DatasetRequest& request);

}  // namespace dp
