// Tests CIFAR's files, right and wrong, and the list of data sets.
#include "io/images/dataset.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "kernels/base/error.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kImageBytes = 3072;

// A pixel that differs between files, records and positions.
std::uint8_t pixel(std::size_t file, std::size_t record, std::size_t position) {
  return static_cast<std::uint8_t>(file * 57 + record * 31 + position * 7 + position / 256);
}

Bytes cifar_file(std::size_t file, std::size_t records, std::size_t label_bytes) {
  Bytes bytes;
  for (std::size_t record = 0; record < records; ++record) {
    if (label_bytes == 2) bytes.push_back(static_cast<std::uint8_t>((file + record) % 20));
    bytes.push_back(static_cast<std::uint8_t>((3 * file + record) % 10));
    for (std::size_t i = 0; i < kImageBytes; ++i) bytes.push_back(pixel(file, record, i));
  }
  return bytes;
}

void write_cifar10(const TempFolder& folder, const std::string& prefix = "") {
  for (std::size_t file = 1; file <= 5; ++file) {
    folder.write(prefix + "data_batch_" + std::to_string(file) + ".bin",
                 cifar_file(file, file + 1, 1));
  }
  folder.write(prefix + "test_batch.bin", cifar_file(6, 3, 1));
}

std::span<const std::uint8_t> image_of(const ImageSource& source, std::size_t index) {
  static Bytes scratch;
  return source.read(index, {}, scratch).bytes;
}

// The message of the Error(data) that loading throws.
std::string failure(std::string_view name, const DatasetRequest& request) {
  try {
    static_cast<void>(load_dataset(name, request));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

TEST(Cifar10, ReadsEveryRecordInOrder) {
  const TempFolder folder;
  write_cifar10(folder);
  const Dataset data = load_dataset("cifar10", {.data_dir = folder.path().string()});
  ASSERT_EQ(data.train->count(), 2u + 3 + 4 + 5 + 6);
  ASSERT_EQ(data.test->count(), 3u);
  EXPECT_EQ(data.train->classes(), 10u);
  EXPECT_EQ(data.train->name(), "CIFAR-10 train");
  EXPECT_EQ(data.train->normalization().mean, (std::array{0.4914f, 0.4822f, 0.4465f}));
  EXPECT_EQ(data.train->class_names()[3], "class 3");
  std::size_t i = 0;
  for (std::size_t file = 1; file <= 5; ++file) {
    for (std::size_t record = 0; record < file + 1; ++record, ++i) {
      EXPECT_EQ(data.train->label(i), static_cast<int>((3 * file + record) % 10));
      for (std::size_t p = 0; p < kImageBytes; ++p) {
        ASSERT_EQ(image_of(*data.train, i)[p], pixel(file, record, p)) << i << " " << p;
      }
    }
  }
}

TEST(Cifar10, ParentFolderLimitsAndClassNames) {
  const TempFolder folder;
  write_cifar10(folder, "cifar-10-batches-bin/");
  folder.write("cifar-10-batches-bin/batches.meta.txt",
               {'a',  '\n', 'b',  '\n', 'c',  '\n', 'd',  '\n', 'e',  '\n', 'f',
                '\n', 'g',  '\n', 'h',  '\n', 'i',  '\n', 'j',  '\n', '\n'});
  const Dataset data = load_dataset(
      "cifar10", {.data_dir = folder.path().string(), .limit_train = 4, .limit_test = 1'000});
  EXPECT_EQ(data.train->count(), 4u);
  EXPECT_EQ(data.test->count(), 3u);
  EXPECT_EQ(image_of(*data.train, 3)[5], pixel(2, 1, 5));
  EXPECT_EQ(data.train->class_names()[9], "j");
  EXPECT_EQ(detect_dataset(folder.path().string()), "cifar10");
}

TEST(Cifar100, TheFineLabelIsLearnt) {
  const TempFolder folder;
  folder.write("train.bin", cifar_file(1, 4, 2));
  folder.write("test.bin", cifar_file(2, 2, 2));
  const Dataset data = load_dataset("cifar100", {.data_dir = folder.path().string()});
  ASSERT_EQ(data.train->count(), 4u);
  EXPECT_EQ(data.train->classes(), 100u);
  EXPECT_EQ(data.train->label(2), 5);
  EXPECT_EQ(image_of(*data.train, 2)[100], pixel(1, 2, 100));
  // Its own mean and deviation, not CIFAR-10's.
  EXPECT_EQ(data.train->normalization().mean, (std::array{0.5071f, 0.4865f, 0.4409f}));
  EXPECT_EQ(data.test->normalization().deviation, (std::array{0.2673f, 0.2564f, 0.2762f}));
  const Dataset other = load_dataset(
      "cifar100", {.data_dir = folder.path().string(), .mean = std::array{0.5f, 0.4f, 0.3f}});
  EXPECT_EQ(other.train->normalization().mean[2], 0.3f);
  EXPECT_EQ(other.train->normalization().deviation[2], 0.2762f);
  EXPECT_EQ(detect_dataset(folder.path().string()), "cifar100");
}

TEST(CifarErrors, FolderNotGivenOrMissing) {
  const TempFolder folder;
  expect_contains(failure("cifar10", {}),
                  {"data set cifar10", "needs the folder", "experiments/get_cifar.sh cifar10"});
  expect_contains(failure("cifar100", {.data_dir = folder / "no"}),
                  {folder / "no", "no such folder", "experiments/get_cifar.sh cifar100"});
  folder.write("file", {1});
  expect_contains(failure("cifar10", {.data_dir = folder / "file"}),
                  {folder / "file", "is not a folder"});
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {folder.path().string(), "data_batch_1.bin",
                   "cifar-10-batches-bin/data_batch_1.bin", "experiments/get_cifar.sh cifar10"});
}

TEST(CifarErrors, OtherDataInTheFolder) {
  const TempFolder folder;
  folder.write("train.bin", cifar_file(1, 1, 2));
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {"it holds CIFAR-100", "use data set cifar100"});
  const TempFolder python;
  python.write("cifar-10-batches-py/data_batch_1", {1});
  expect_contains(failure("cifar10", {.data_dir = python.path().string()}),
                  {"Python version", "binary version"});
}

TEST(CifarErrors, WhatElseIsInTheFolderIsTold) {
  const TempFolder folder;
  for (const char* name : {"train/cat/1.JPG", "train/dog/2.jpg", "test/cat/3.jpg", "notes.txt"}) {
    folder.write(name, {1});
  }
  const std::string message = failure("cifar10", {.data_dir = folder.path().string()});
  expect_contains(message, {"it holds 2 folders (test, train) and 1 file (notes.txt)",
                            "images such as ", "which data set folder reads"});
  EXPECT_EQ(detect_dataset(folder.path().string()), "folder");
  EXPECT_EQ(message.find("Python"), std::string::npos) << message;
  const TempFolder empty;
  expect_contains(failure("cifar10", {.data_dir = empty.path().string()}),
                  {"it is empty; experiments/get_cifar.sh"});
}

TEST(Cifar10, AShorterFileIsReadAndNamed) {
  const TempFolder folder;
  for (std::size_t file = 1; file <= 5; ++file) {
    folder.write("data_batch_" + std::to_string(file) + ".bin",
                 cifar_file(file, file == 4 ? 2 : 3, 1));
  }
  folder.write("test_batch.bin", cifar_file(6, 1, 1));
  const DatasetRequest request = {.data_dir = folder.path().string()};
  const Dataset data = load_dataset("cifar10", request);
  EXPECT_EQ(data.train->count(), 14u);
  ASSERT_EQ(data.warnings.size(), 1u);
  EXPECT_EQ(data.warnings[0],
            folder / "data_batch_4.bin" +
                ": has 2 images and data_batch_1.bin has 3; is the file complete?");
  folder.write("data_batch_4.bin", cifar_file(4, 3, 1));
  EXPECT_TRUE(load_dataset("cifar10", request).warnings.empty());
}

TEST(CifarErrors, MissingFileIsNamedEvenBehindALimit) {
  const TempFolder folder;
  write_cifar10(folder);
  std::filesystem::remove(folder / "data_batch_4.bin");
  expect_contains(failure("cifar10", {.data_dir = folder.path().string(), .limit_train = 1}),
                  {folder / "data_batch_4.bin", "missing", "test_batch.bin", "get_cifar.sh"});
}

TEST(CifarErrors, TruncatedMisSizedAndEmptyFiles) {
  const TempFolder folder;
  write_cifar10(folder);
  Bytes bytes = cifar_file(2, 3, 1);
  bytes.pop_back();
  folder.write("data_batch_2.bin", bytes);
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {folder / "data_batch_2.bin", "9218 bytes", "3073 bytes", "2 records",
                   "3072 bytes more", "cut off"});
  folder.write("data_batch_2.bin", {});
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {folder / "data_batch_2.bin", "has 0 bytes"});
  // CIFAR-100 records in files named like CIFAR-10's.
  folder.write("data_batch_2.bin", cifar_file(2, 3, 2));
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {folder / "data_batch_2.bin", "9222 bytes"});
}

TEST(CifarErrors, LabelsOutOfRange) {
  const TempFolder folder;
  write_cifar10(folder);
  Bytes bytes = cifar_file(3, 4, 1);
  bytes[2 * (kImageBytes + 1)] = 10;
  folder.write("data_batch_3.bin", bytes);
  expect_contains(failure("cifar10", {.data_dir = folder.path().string()}),
                  {folder / "data_batch_3.bin", "record 2", "label 10", "0 to 9"});

  const TempFolder hundred;
  Bytes train = cifar_file(1, 2, 2);
  // The coarse label is not used, so that it may be anything.
  train[kImageBytes + 2] = 255;
  hundred.write("train.bin", train);
  hundred.write("test.bin", cifar_file(1, 1, 2));
  const Dataset data = load_dataset("cifar100", {.data_dir = hundred.path().string()});
  EXPECT_EQ(data.train->label(1), 4);
  EXPECT_TRUE(data.warnings.empty());
  train[1] = 100;
  hundred.write("train.bin", train);
  expect_contains(failure("cifar100", {.data_dir = hundred.path().string()}),
                  {"record 0", "label 100", "0 to 99"});
}

// Whatever the network answers is right then.
TEST(Datasets, ASingleClassIsReported) {
  const TempFolder folder;
  write_cifar10(folder);
  for (std::size_t file = 1; file <= 5; ++file) {
    Bytes one = cifar_file(file, 3, 1);
    for (std::size_t record = 0; record < 3; ++record) one[record * (kImageBytes + 1)] = 7;
    folder.write("data_batch_" + std::to_string(file) + ".bin", one);
  }
  const Dataset data = load_dataset("cifar10", {.data_dir = folder.path().string()});
  ASSERT_EQ(data.warnings.size(), 1u);
  expect_contains(data.warnings[0], {"all training images have the same class, class 7"});
}

TEST(Datasets, EachIsARow) {
  std::vector<std::string> names;
  for (const DatasetRow& row : dataset_list()) names.emplace_back(row.name);
  EXPECT_EQ(names, (std::vector<std::string>{"synthetic", "cifar10", "cifar100", "folder"}));
  try {
    static_cast<void>(load_dataset("mnist", {}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    expect_contains(error.what(), {"data set mnist", "synthetic, cifar10, cifar100, folder"});
  }
}

TEST(Datasets, AFolderWithTwoOfThemIsNotDetected) {
  const TempFolder folder;
  EXPECT_EQ(detect_dataset(folder.path().string()), "");
  folder.write("cifar-10-batches-bin/data_batch_1.bin", {1});
  EXPECT_EQ(detect_dataset(folder.path().string()), "cifar10");
  folder.write("cifar-100-binary/test.bin", {1});
  EXPECT_EQ(detect_dataset(folder.path().string()), "");
}

}  // namespace
}  // namespace dp
