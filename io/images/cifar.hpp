// Reads CIFAR-10 and CIFAR-100 in their official binary layout (Krizhevsky 2009), or any images of
// 32x32 pixels in 10 or 100 classes that are written in this layout.
//
// A file is a sequence of records without a header or gaps. A file may have any number of records.
// The names of the files tell the two data sets apart.
//
// CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin, with 10,000 records each in
// the original. A record is 1 byte with the label (0 to 9) and 3,072 bytes of pixels: 1,024 red
// values (32 rows of 32, from top to bottom), then green, then blue.
//
// CIFAR-100: train.bin (50,000 records in the original) and test.bin (10,000). A record is 1 byte
// with a coarse label (0 to 19, not used), 1 byte with the fine label (0 to 99, the class to be
// learnt), and the pixels.
#pragma once

#include "io/images/dataset.hpp"

namespace dp {

inline constexpr ImageShape kCifarShape{.height = 32, .width = 32};

// All files must exist and have a whole number of records, even if DatasetRequest's limits leave
// some files unread. Throws Error(data). Warns if a training file is shorter than the longest
// training file, because the short file may be an incomplete copy.
[[nodiscard]] Dataset load_cifar10(const DatasetRequest& request);
[[nodiscard]] Dataset load_cifar100(const DatasetRequest& request);

// Whether the folder, or the subfolder into which the official archive unpacks, has any of the
// files.
[[nodiscard]] bool is_cifar10_in(const std::string& folder);
[[nodiscard]] bool is_cifar100_in(const std::string& folder);

}  // namespace dp
