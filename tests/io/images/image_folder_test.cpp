// Tests image folders and packs: which files, folders and parts are used, the division into
// training and testing, size, normalisation and hash, bad images, and that a pack gives its
// folder's bits.
#include "io/images/image_folder.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "io/images/dataset.hpp"
#include "io/images/encoded_source.hpp"
#include "io/images/image_pack.hpp"
#include "io/images/loader.hpp"
#include "kernels/base/error.hpp"
#include "tests/io/images/image_files.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

const EncodedSource& encoded(const std::unique_ptr<const ImageSource>& source) {
  return dynamic_cast<const EncodedSource&>(*source);
}

// Paths relative to the folder.
std::vector<std::string> paths_of(const std::unique_ptr<const ImageSource>& source,
                                  const TempFolder& folder) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < source->count(); ++i) {
    paths.push_back(encoded(source).path_of(i).substr(folder.path().string().size() + 1));
  }
  return paths;
}

std::vector<std::int32_t> labels_of(const std::unique_ptr<const ImageSource>& source) {
  std::vector<std::int32_t> labels;
  for (std::size_t i = 0; i < source->count(); ++i) labels.push_back(source->label(i));
  return labels;
}

// The error's message.
std::string failure(const std::function<void()>& f, ErrorKind kind = ErrorKind::data) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
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

Dataset load(const TempFolder& folder, DatasetRequest request = {}) {
  if (request.data_dir.empty()) request.data_dir = folder.path().string();
  return load_dataset("folder", request);
}
std::string load_failure(const TempFolder& folder, const DatasetRequest& request = {}) {
  return failure([&] { static_cast<void>(load(folder, request)); });
}

// 12 training and 4 test images of 2 classes, of different sizes.
void write_usual(const TempFolder& folder) {
  for (std::uint32_t i = 0; i < 12; ++i) {
    const std::string name = (i % 2 == 0 ? "train/cat/" : "train/dog/") + std::to_string(i);
    if (i % 3 == 0) {
      folder.write(name + ".png", make_png(30 + i, 40, i));
    } else {
      folder.write(name + ".jpg", make_jpeg(50, 30 + i, i));
    }
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    folder.write((i < 2 ? "val/cat/" : "val/dog/") + std::to_string(i) + ".JPEG",
                 make_jpeg(60, 50, 100 + i));
  }
}

// All batches of some epochs.
std::vector<float> read_all(const ImageSource& source, std::size_t threads) {
  Loader loader(source, {.global_batch = 5, .seed = 3, .threads = threads});
  std::vector<float> values;
  for (const std::uint64_t epoch : {0u, 1u}) {
    loader.start_epoch(epoch);
    for (std::size_t s = 0; s < loader.steps(); ++s) {
      const Batch& batch = loader.next();
      values.insert(values.end(), batch.images.begin(), batch.images.end());
      for (const std::int32_t label : batch.labels) values.push_back(static_cast<float>(label));
    }
  }
  return values;
}

// ---- the list -----------------------------------------------------------------------------------

TEST(ImageFolder, HasTorchvisionsOrder) {
  const TempFolder folder;
  const Bytes image = make_png(8, 8, 1);
  // As torchvision 0.29 lists them.
  const std::vector<std::string> expected = {"train/B b/10.PNG",
                                             "train/B b/9.jpg",
                                             "train/B b/a/1.png",
                                             "train/B b/a-z/1.png",
                                             "train/B b/a/x/1.png",
                                             "train/a/x y.png",
                                             "train/\xC3\xA4/\xE2\x98\x83.png",
                                             "train/\xC3\xA4/\xF0\x9F\x90\x88.png"};
  for (const std::string& path : expected) folder.write(path, image);
  for (const char* name : {"test/B b/1.png", "test/a/1.png"}) folder.write(name, image);
  folder.write("train/B b/notes.txt", {1});
  folder.write("train/a/Thumbs.db", {1});
  folder.write("train/.cache/1.png", image);
  folder.write("train/readme.md", {1});
  const Dataset data = load(folder);
  EXPECT_EQ(paths_of(data.train, folder), expected);
  EXPECT_EQ(labels_of(data.train), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 2, 2}));
  EXPECT_EQ(data.train->class_names(), (std::vector<std::string>{"B b", "a", "\xC3\xA4"}));
  EXPECT_EQ(data.test->class_names(), data.train->class_names());
  EXPECT_EQ(labels_of(data.test), (std::vector<std::int32_t>{0, 1}));
  ASSERT_EQ(data.warnings.size(), 3u);
  expect_contains(data.warnings[0],
                  {"train: 1 file and 1 folder were skipped: hidden or made by the operating "
                   "system (.cache, Thumbs.db)"});
  expect_contains(data.warnings[1],
                  {"train: 1 file was skipped: not an image by its suffix (notes.txt)"});
  expect_contains(data.warnings[2],
                  {": 1 of 3 classes has no test images and is not tested: \xC3\xA4"});
  expect_contains(data.about,
                  {"8 training and 2 test images (test) in 3 classes, all are 8x8",
                   "1 with the suffix of another format",
                   "shifted by up to 4 pixels, with black at the edges, half of them mirrored; "
                   "testing: as they are"});
  EXPECT_EQ(detect_dataset(folder.path().string()), "folder");
}

TEST(ImageFolder, MessagesSayWhatIsMissing) {
  const TempFolder folder;
  expect_contains(load_failure(folder, {.data_dir = folder / "no"}), {"no such folder"});
  expect_contains(load_failure(folder), {"has no folders; expected one for each class"});
  folder.write("x.bin", {1, 2, 3});
  expect_contains(load_failure(folder, {.data_dir = folder / "x.bin"}),
                  {"is neither a folder with images nor a pack"});
  folder.write("train/a/1.png", make_png(8, 8, 1));
  expect_contains(load_failure(folder), {"every class has only one image"});
  folder.write("val/b/1.png", make_png(8, 8, 1));
  expect_contains(load_failure(folder), {"val/b: is a class that the training images do not have"});
  folder.write("train/b/1.txt", {1});
  expect_contains(load_failure(folder), {"train/b: has no image, and every class needs one"});
  folder.write("train/b/1.png", make_png(8, 8, 1));
  EXPECT_EQ(load(folder).train->count(), 2u);
  expect_contains(failure([&] { static_cast<void>(load(folder, {.validation_share = 0.5})); },
                          ErrorKind::usage),
                  {"validation share 0.5", "the data already have test images (val)"});
}

TEST(ImageFolder, AFolderWithoutAnyFileIsNoClass) {
  const TempFolder folder;
  for (const char* part : {"train/", "val/"}) {
    for (const char* name : {"b/1.png", "b/2.png", "d/1.png", "d/2.png"}) {
      folder.write(part + std::string(name), make_png(8, 8, 1));
    }
  }
  folder.write("train/c/.DS_Store", {1});
  std::filesystem::create_directories(folder.path() / "train/a/inner");
  std::filesystem::create_directory_symlink("..", folder.path() / "train/a/inner/loop");
  const Dataset data = load(folder);
  EXPECT_EQ(data.train->class_names(), (std::vector<std::string>{"b", "d"}));
  EXPECT_EQ(labels_of(data.train), (std::vector<std::int32_t>{0, 0, 1, 1}));
  ASSERT_EQ(data.warnings.size(), 2u);
  expect_contains(data.warnings[0], {"train/a: has no files and is not used as a class"});
  expect_contains(data.warnings[1], {"train/c: has no files and is not used as a class"});

  const TempFolder empty;
  std::filesystem::create_directories(empty.path() / "train/a");
  expect_contains(load_failure(empty), {"train: has no image in its folders"});
}

// Every name, as a file with an image and as a folder of them.
TEST(ImageFolder, NamesOfSystemsAreNoImagesAndNoClasses) {
  const std::vector<std::string> files = {"~$1.jpg",
                                          "SYNOPHOTO_THUMB_M.jpg",
                                          "AlbumArtSmall.jpg",
                                          "AlbumArt_{9D-1}_Large.jpg",
                                          "Icon\r",
                                          ".a.png"};
  const std::vector<std::string> folders = {"Thumbnails",
                                            "thumbs",
                                            "#snapshot",
                                            "~snapshot",
                                            "@tmp",
                                            "RECYCLER",
                                            "@Recently-Snapshot",
                                            "Network Trash Folder",
                                            "Temporary Items",
                                            "__pycache__",
                                            "@__thumb",
                                            "lost+found"};
  const TempFolder folder;
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png", "b/2.png"}) {
    folder.write(name, make_png(8, 8, 1));
  }
  for (const std::string& name : files) folder.write("a/" + name, make_png(8, 8, 1));
  for (const std::string& name : folders) {
    folder.write(name + "/1.png", make_png(8, 8, 1));
    folder.write("b/" + name + "/1.png", make_png(8, 8, 1));
  }
  // Similar names are the user's.
  for (const char* name : {"b/albumartist.png", "b/thumb.png", "b/synophoto.png", "b/~1.png"}) {
    folder.write(name, make_png(8, 8, 1));
  }
  const Dataset data = load(folder);
  EXPECT_EQ(data.train->class_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data.train->count() + data.test->count(), 8u);
  ASSERT_FALSE(data.warnings.empty());
  expect_contains(data.warnings[0], {": 6 files and 24 folders were skipped: hidden or made by"});
}

// Files that archives from a Mac, a NAS or Windows, notebooks and thumbnails add to a folder of
// images.
TEST(ImageFolder, HiddenAndSystemFilesAreLeftOutAndCounted) {
  const auto write_images = [](const TempFolder& folder, const std::string& part) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      folder.write(part + (i < 3 ? "cat/" : "dog/") + std::to_string(i) + ".png",
                   make_png(8, 8, i));
    }
  };
  const Bytes junk = {0, 5, 22, 7};
  const auto write_junk = [&](const TempFolder& folder, const std::string& part) {
    folder.write(part + ".DS_Store", junk);
    for (const char* name : {"cat/.DS_Store", "cat/._0.png", "cat/._1.png", "dog/.hidden.jpg",
                             "dog/Thumbs.db", "dog/Desktop.ini"}) {
      folder.write(part + name, junk);
    }
    for (const char* name :
         {"__MACOSX/cat/._0.png", "@eaDir/cat/1.png/a.jpg", "cat/@eaDir/0.png", ".thumbnails/2.png",
          "cat/.ipynb_checkpoints/0.png", "$RECYCLE.BIN/1.png"}) {
      folder.write(part + name, make_png(8, 8, 1));
    }
  };
  // In one tree, and in parts.
  const TempFolder clean, tree, parts;
  write_images(clean, "");
  write_images(tree, "");
  write_junk(tree, "");
  EXPECT_EQ(content_hash(load(tree)), content_hash(load(clean)));
  ASSERT_EQ(load(tree).warnings.size(), 1u);
  expect_contains(
      load(tree).warnings[0],
      {": 7 files and 6 folders were skipped: hidden or made by the operating system (.DS_Store, "
       "$RECYCLE.BIN, .thumbnails, ...)"});
  for (const std::string part : {"train/", "val/", "__MACOSX/train/"}) {
    write_images(parts, part);
    write_junk(parts, part);
  }
  const Dataset data = load(parts);
  EXPECT_EQ(data.train->class_names(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(data.train->count(), 6u);
  EXPECT_EQ(data.test->count(), 6u);
  ASSERT_EQ(data.warnings.size(), 2u);
  expect_contains(data.warnings[0], {"/train: 7 files and 6 folders were skipped"});
  expect_contains(data.warnings[1], {"/val: 7 files and 6 folders were skipped"});
  const TempFolder hidden;
  write_junk(hidden, "a/");
  EXPECT_EQ(detect_dataset(hidden.path().string()), "");
}

// A class without test images, whether its folder is there or not.
TEST(ImageFolder, AClassMayHaveNoTestImages) {
  const TempFolder folder, out;
  for (std::uint32_t i = 0; i < 6; ++i) {
    folder.write((i < 3 ? "train/cat/" : "train/dog/") + std::to_string(i) + ".png",
                 make_png(8, 8, i));
  }
  folder.write("val/cat/1.png", make_png(8, 8, 7));
  const auto hash = content_hash(load(folder));
  const auto check = [&](const DatasetRequest& request) {
    const Dataset data = load(folder, request);
    EXPECT_EQ(content_hash(data), hash);
    EXPECT_EQ(labels_of(data.test), std::vector<std::int32_t>{0});
    ASSERT_EQ(data.warnings.size(), 1u);
    expect_contains(data.warnings[0],
                    {": 1 of 2 classes has no test images and is not tested: dog"});
  };
  check({});
  std::filesystem::create_directories(folder / "val/dog");
  check({});
  std::filesystem::create_directories(folder / "val/dog/deeper");
  std::filesystem::create_directories(folder / "val/unknown");
  check({});
  static_cast<void>(
      write_image_pack({.folder = folder.path().string(), .path = out / "a.h5", .threads = 1}));
  check({.data_dir = out / "a.h5"});
  std::filesystem::remove(folder / "val/cat/1.png");
  expect_contains(load_failure(folder), {"val: has no image in its folders"});
}

// Mostly a folder one level too high.
TEST(ImageFolder, OneClassIsRefusedWithWhatIsInIt) {
  const TempFolder parts, tree, flat, out;
  for (std::uint32_t i = 0; i < 12; ++i) {
    const std::string name = (i % 2 == 0 ? "cat/" : "dog/") + std::to_string(i) + ".png";
    parts.write("train/images/" + name, make_png(8, 8, i));
    parts.write("val/images/" + name, make_png(8, 8, i));
    tree.write("photos/" + name, make_png(8, 8, i));
    flat.write("all/" + std::to_string(i) + ".png", make_png(8, 8, i));
  }
  const std::string inside =
      "has one class only in train, images, with 12 images in its folders "
      "cat, dog; training needs at least two classes; if these folders are meant as classes, "
      "move them out of images into train";
  expect_contains(load_failure(parts), {parts.path().string(), inside});
  static_cast<void>(
      write_image_pack({.folder = parts.path().string(), .path = out / "a.h5", .threads = 1}));
  expect_contains(load_failure(parts, {.data_dir = out / "a.h5"}), {inside});
  expect_contains(load_failure(tree), {"has one class only, photos, with 12 images in its folders "
                                       "cat, dog;",
                                       "give the folder photos as the data folder"});
  expect_contains(load_failure(flat),
                  {"has one class only, all, with 12 images; training needs at least two folders"});
  for (int i = 0; i < 9; ++i) {
    parts.write("train/images/" + std::to_string(i) + "/x/1.png", make_png(8, 8, 1));
  }
  expect_contains(load_failure(parts), {"in its folders 0, 1, 2, 3, 4, 6 more;"});
}

// Folders that are called as parts are, where others are expected.
TEST(ImageFolder, OtherLayoutsAreNotTrainedOn) {
  const TempFolder folder;
  const auto write = [&](const std::string& part) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      folder.write(part + (i < 2 ? "/a/" : "/b/") + std::to_string(i) + ".png", make_png(8, 8, i));
    }
  };
  write("val");
  EXPECT_EQ(detect_dataset(folder.path().string()), "folder");
  expect_contains(load_failure(folder),
                  {"has val, but no train; put a folder of training images for each class into "
                   "train, and the same folders with test images into val or test"});
  write("Training");
  expect_contains(load_failure(folder), {"has Training and val, but no train"});
  write("train");
  EXPECT_EQ(load(folder).warnings.size(), 1u);
  expect_contains(load(folder).warnings[0],
                  {"Training is not used; test images are taken from val"});
  std::filesystem::remove_all(folder / "Training");
  std::filesystem::rename(folder / "val", folder / "valid");
  expect_contains(load_failure(folder),
                  {"has train and valid; a folder of test images must be called val or test"});
  write("test");
  expect_contains(load(folder).warnings[0], {"valid is not used; test images are taken from test"});
  // A class may be called so.
  const TempFolder classes;
  for (const char* name : {"cat/1.png", "cat/2.png", "test/1.png", "test/2.png"}) {
    classes.write(name, make_png(8, 8, 1));
  }
  const Dataset data = load(classes);
  EXPECT_EQ(data.train->classes(), 2u);
  ASSERT_EQ(data.warnings.size(), 1u);
  expect_contains(data.warnings[0], {"has no train, so test is used as a class"});
}

TEST(ImageFolder, IsRecognisedBehindLinksAndOtherFiles) {
  const TempFolder folder, other;
  for (int i = 0; i < 1'100; ++i) other.write("many/" + std::to_string(i) + ".txt", {});
  EXPECT_EQ(detect_dataset(other.path().string()), "");
  other.write("many/deep/1.png", make_png(8, 8, 1));
  EXPECT_EQ(detect_dataset(other.path().string()), "folder");
  std::filesystem::create_directory_symlink("..", folder / "a b");
  std::filesystem::create_directory_symlink(folder.path(), folder / "loop");
  std::filesystem::create_directory_symlink(other.path() / "many", folder / "b");
  EXPECT_EQ(detect_dataset(folder.path().string()), "folder");
}

TEST(ImageFolder, SaysHowImagesAreTrained) {
  const TempFolder small, mixed;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::string name = (i < 2 ? "a/" : "b/") + std::to_string(i) + ".png";
    small.write(name, make_png(8, 8, i));
    mixed.write(name, make_png(8 + i, 8, i));
  }
  const auto trained = [](const TempFolder& folder, DatasetRequest request) {
    request.image_size = 8;
    const std::string about = load(folder, request).about;
    const std::size_t begin = about.find("training: ") + 10;
    return about.substr(begin, about.find("; testing: ") - begin);
  };
  using Flip = AugmentationRule::Flip;
  EXPECT_EQ(trained(small, {.augment = {}}), "as for testing");
  EXPECT_EQ(trained(mixed, {.augment = {}}), "as for testing");
  EXPECT_EQ(trained(small, {.augment = {{.crop_padding = 2,
                                         .is_reflected = true,
                                         .flip = Flip::alternate,
                                         .cutout = 3}}}),
            "shifted by up to 2 pixels, with their mirror images at the edges, mirrored in every "
            "other epoch, a "
            "square of 3x3 set to the mean colour");
  EXPECT_EQ(trained(small, {.augment = {{.crop_padding = 0, .flip = Flip::off}}}),
            "as they are, not mirrored");
  EXPECT_EQ(trained(mixed, {.augment = {{.crop_padding = 2}}}),
            "a random part, scaled, half of them mirrored");
  expect_contains(load(mixed, {.augment = {{.crop_padding = 2}}}).warnings.at(0),
                  {"the padding options are ignored"});
  EXPECT_TRUE(load(mixed, {.augment = AugmentationRule{}}).warnings.empty());
  EXPECT_TRUE(load(small, {.augment = {{.crop_padding = 2}}}).warnings.empty());
  EXPECT_EQ(trained(mixed, {.crop = CropKind::pad, .augment = {{.crop_padding = 1}}}),
            "the centre, after the shorter side is scaled to 9, shifted by up to 1 pixel, "
            "with black at the edges, half of "
            "them mirrored");
}

TEST(ImageFolder, FollowsLinksButNoLoops) {
  const TempFolder folder, other;
  folder.write("train/a/1.png", make_png(8, 8, 1));
  folder.write("train/b/1.png", make_png(8, 8, 2));
  folder.write("val/a/1.png", make_png(8, 8, 3));
  other.write("more/2.png", make_png(8, 8, 4));
  std::filesystem::create_directory_symlink(other.path() / "more", folder / "train/a/linked");
  std::filesystem::create_directory_symlink(folder.path() / "train", folder / "train/a/loop");
  std::filesystem::create_directory_symlink(".", folder / "train/b/itself");
  std::filesystem::create_directory_symlink("round", folder / "train/b/round");
  const Dataset data = load(folder);
  EXPECT_EQ(paths_of(data.train, folder),
            (std::vector<std::string>{"train/a/1.png", "train/a/linked/2.png", "train/b/1.png"}));
  ASSERT_EQ(data.warnings.size(), 4u);
  expect_contains(data.warnings[0], {"train/a/loop: skipped: it leads back to a folder above it"});
  expect_contains(data.warnings[1], {"train/b/itself: skipped"});
}

TEST(ImageFolder, AShareOfEachClassIsForTesting) {
  const TempFolder folder;
  for (std::uint32_t i = 0; i < 40; ++i) {
    folder.write((i < 30 ? "a/" : "b/") + std::to_string(i) + ".png", make_png(8, 8, i));
  }
  const auto split = [&](const DatasetRequest& request) {
    const Dataset data = load(folder, request);
    return std::pair(paths_of(data.train, folder), paths_of(data.test, folder));
  };
  const auto [train, test] = split({.validation_share = 0.2});
  EXPECT_EQ(test.size(), 8u);
  EXPECT_EQ(std::ranges::count_if(test, [](const auto& path) { return path[0] == 'a'; }), 6);
  std::set<std::string> all(train.begin(), train.end());
  all.insert(test.begin(), test.end());
  EXPECT_EQ(all.size(), 40u);
  // The run's seed, limits and threads do not matter; the split's seed does.
  EXPECT_EQ(split({.seed = 9, .threads = 3, .validation_share = 0.2}).second, test);
  EXPECT_NE(split({.validation_share = 0.2, .split_seed = 1}).second, test);
  EXPECT_EQ(split({}).second.size(), 4u);
  // A larger share takes more, not others.
  const auto more = split({.validation_share = 0.4}).second;
  EXPECT_TRUE(std::ranges::includes(more, test));
  // A file that is added moves few others; the folder's own place moves none.
  const TempFolder copy;
  std::filesystem::copy(folder.path(), copy.path(), std::filesystem::copy_options::recursive);
  EXPECT_EQ(paths_of(load(copy, {.validation_share = 0.2}).test, copy), test);
}

TEST(ImageFolder, ALimitKeepsTheSharesOfClasses) {
  const TempFolder folder;
  write_usual(folder);
  const Dataset data = load(folder, {.limit_train = 6, .limit_test = 2});
  EXPECT_EQ(labels_of(data.train), (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(labels_of(data.test), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(load(folder, {.limit_train = 1'000}).train->count(), 12u);
}

// ---- size, crop and normalisation ---------------------------------------------------------------

TEST(ImageFolder, ChoosesTheNetworksSize) {
  const TempFolder small, mixed;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::string name = (i < 2 ? "a/" : "b/") + std::to_string(i) + ".png";
    small.write(name, make_png(28, 28, i));
    mixed.write(name, make_png(28 + i, 28, i));
  }
  EXPECT_EQ(load(small).train->shape(), (ImageShape{.height = 28, .width = 28}));
  EXPECT_EQ(load(small, {.image_size = 20}).train->shape().width, 20u);
  EXPECT_EQ(load(mixed).train->shape().width, 224u);
  expect_contains(load(mixed).about,
                  {"28 to 31 pixels wide and 28 high", "the network sees 224x224",
                   "a random part, scaled", "the centre, after the shorter side is scaled to 256"});
  const auto rest_of = [](const Dataset& data) {
    Bytes scratch;
    return data.train
        ->read(0, {.shift_x = 2, .is_flipped = true, .is_drawn = true, .bits = 5}, scratch)
        .rest;
  };
  // Shifted by the caller, or cut by the source.
  EXPECT_EQ(rest_of(load(small)).shift_x, 2);
  const Augmentation cut = rest_of(load(small, {.crop = CropKind::resized}));
  EXPECT_EQ(cut.shift_x, 0);
  EXPECT_TRUE(cut.is_flipped);
  EXPECT_EQ(rest_of(load(mixed, {.crop = CropKind::pad})).shift_x, 2);
}

TEST(ImageFolder, APixelIsTheFilesPixel) {
  const TempFolder folder;
  const Bytes rgb = draw_pixels(16, 16, 3, 8);
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png", "b/2.png"}) {
    folder.write(name, make_png(16, 16, rgb));
  }
  const Dataset data = load(folder);
  Bytes scratch;
  const auto image = data.train->read(0, {}, scratch).bytes;
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(image[c * 256 + i], rgb[3 * i + c]);
  }
}

TEST(ImageFolder, MeasuresMeanAndDeviation) {
  const TempFolder folder;
  // Halves of 0 and 200 in red, 100 in green, 255 in blue.
  Bytes rgb;
  for (int i = 0; i < 64; ++i) {
    rgb.insert(rgb.end(), {static_cast<std::uint8_t>(i % 2 * 200), 100, 255});
  }
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png", "b/2.png"}) {
    folder.write(name, make_png(8, 8, rgb));
  }
  const Normalization measured = load(folder).train->normalization();
  EXPECT_FLOAT_EQ(measured.mean[0], 0.3922f);
  EXPECT_FLOAT_EQ(measured.deviation[0], 0.3922f);
  EXPECT_FLOAT_EQ(measured.mean[1], 0.3922f);
  EXPECT_FLOAT_EQ(measured.deviation[1], 0.001f);  // one colour: not zero
  EXPECT_FLOAT_EQ(measured.mean[2], 1.0f);
  const Normalization given = load(folder, {.mean = {{0.5f, 0.4f, 0.3f}}}).test->normalization();
  EXPECT_FLOAT_EQ(given.mean[1], 0.4f);
  EXPECT_FLOAT_EQ(given.deviation[0], 0.3922f);
}

// ---- determinism --------------------------------------------------------------------------------

TEST(ImageFolder, ThreadsChangeNothing) {
  const TempFolder folder;
  write_usual(folder);
  const Dataset one = load(folder, {.image_size = 24}),
                many = load(folder, {.threads = 5, .image_size = 24});
  EXPECT_EQ(content_hash(one), content_hash(many));
  EXPECT_EQ(one.about, many.about);
  const std::vector<float> expected = read_all(*one.train, 1);
  EXPECT_EQ(read_all(*one.train, 2), expected);
  EXPECT_EQ(read_all(*many.train, 7), expected);
}

TEST(ImageFolder, TheHashTellsNamesSizesLabelsAndBytesApart) {
  const TempFolder folder;
  write_usual(folder);
  const DatasetRequest request = {
      .mean = {{0.5f, 0.5f, 0.5f}}, .deviation = {{0.2f, 0.2f, 0.2f}}, .image_size = 24};
  const auto hash = [&] { return content_hash(load(folder, request)); };
  const std::uint64_t usual = hash();
  EXPECT_EQ(hash(), usual);
  std::set<std::uint64_t> hashes = {usual};
  const auto path = [&](const char* name) { return folder.path() / "train" / name; };
  std::filesystem::rename(path("cat/2.jpg"), path("cat/20.jpg"));
  EXPECT_TRUE(hashes.insert(hash()).second) << "name";
  std::filesystem::rename(path("cat/20.jpg"), path("dog/2.jpg"));
  EXPECT_TRUE(hashes.insert(hash()).second) << "label";
  std::filesystem::rename(path("dog/2.jpg"), path("cat/2.jpg"));
  EXPECT_EQ(hash(), usual);
  folder.write("train/cat/2.jpg", make_jpeg(50, 33, 2));
  EXPECT_TRUE(hashes.insert(hash()).second) << "size";
  folder.write("train/cat/2.jpg", make_jpeg(50, 32, 7));
  EXPECT_TRUE(hashes.insert(hash()).second) << "bytes of the file";
  Bytes other = make_jpeg(50, 32, 7);
  other[other.size() - 10] ^= 1;
  folder.write("train/cat/2.jpg", other);
  EXPECT_TRUE(hashes.insert(hash()).second) << "other bytes of the same number";
}

TEST(ImageFolder, TheHashHasTheBytesOfSomeOfManyFiles) {
  const TempFolder folder;
  for (int i = 0; i < 600; ++i) {
    folder.write(fmt::format("train/{}/{:03}.png", i < 300 ? "a" : "b", i), make_png(8, 8, 1));
  }
  for (const char* name : {"val/a/1.png", "val/b/1.png"}) folder.write(name, make_png(8, 8, 1));
  const auto hash = [&] {
    return content_hash(
        load(folder, {.mean = {{0.5f, 0.5f, 0.5f}}, .deviation = {{0.2f, 0.2f, 0.2f}}}));
  };
  const std::uint64_t usual = hash();
  Bytes other = make_png(8, 8, 1);
  other[other.size() - 20] ^= 1;
  // 256 of 600: the first one, and not the next one.
  folder.write("train/a/001.png", other);
  EXPECT_EQ(hash(), usual);
  folder.write("train/a/000.png", other);
  EXPECT_NE(hash(), usual);
}

// ---- bad images ---------------------------------------------------------------------------------

Bytes damaged_jpeg(std::uint32_t seed) {
  const Bytes bytes = make_jpeg(50, 40, seed);
  return {bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(bytes.size() / 3)};
}

TEST(BadImages, HeadersAreCheckedBeforeTheFirstStep) {
  const TempFolder folder;
  write_usual(folder);
  folder.write("train/cat/empty.jpg", {});
  folder.write("train/dog/new\nline.jpg", {'G', 'I', 'F', '8', '9', 'a'});
  folder.write("train/dog/photo.webp", {'R', 'I', 'F', 'F', 9, 0, 0, 0, 'W', 'E', 'B', 'P'});
  folder.write("val/cat/page.png", {'<', 'h', 't', 'm', 'l'});
  std::filesystem::create_symlink("nowhere", folder / "train/dog/dangling.png");
  ASSERT_EQ(::mkfifo((folder / "train/cat/pipe.jpg").c_str(), 0600), 0);
  expect_contains(
      load_failure(folder),
      {"5 of 17 images cannot be read: ", "train/cat/empty.jpg: is empty",
       "train/cat/pipe.jpg: is not a regular file", "dangling.png: is a link to nothing",
       "new\\x0aline.jpg: is a GIF", "photo.webp: is a WebP", "bad images can be left out"});
  const Dataset data = load(folder, {.image_size = 24, .bad_images = BadImages::skip});
  EXPECT_EQ(data.train->count(), 12u);
  EXPECT_EQ(data.test->count(), 4u);
  ASSERT_EQ(data.warnings.size(), 2u);
  expect_contains(data.warnings[1], {"1 of 5 images cannot be read", "page.png: is an HTML page"});
}

TEST(BadImages, BodiesAreNamedOrReplacedByTheNextOfTheClass) {
  const TempFolder folder;
  for (int i = 0; i < 3; ++i) {
    const std::string name = std::to_string(i) + ".jpg";
    folder.write("train/a/" + name,
                 i == 2 ? damaged_jpeg(5) : make_jpeg(50, 40, static_cast<std::uint32_t>(i)));
    folder.write("train/b/" + name, i != 1 ? damaged_jpeg(6) : make_jpeg(50, 40, 10));
    folder.write("val/b/" + name, make_jpeg(50, 40, static_cast<std::uint32_t>(i)));
  }
  const DatasetRequest fail = {.mean = {{0, 0, 0}}, .deviation = {{1, 1, 1}}, .image_size = 16};
  DatasetRequest skip = fail;
  skip.bad_images = BadImages::skip;
  const Dataset strict = load(folder, fail), patient = load(folder, skip);
  Bytes scratch;
  EXPECT_NO_THROW(static_cast<void>(strict.train->read(0, {}, scratch)));
  expect_contains(failure([&] { static_cast<void>(strict.train->read(2, {}, scratch)); }),
                  {"train/a/2.jpg: is a damaged JPEG: Premature end of JPEG file"});
  // The normalisation is measured before the first step, so that most damage shows there.
  expect_contains(load_failure(folder, {.image_size = 16}), {"is a damaged JPEG"});

  const auto bytes_of = [&](std::size_t i, const Augmentation& crop) {
    const auto bytes = patient.train->read(i, crop, scratch).bytes;
    return Bytes(bytes.begin(), bytes.end());
  };
  const Augmentation crop = {.is_drawn = true, .bits = 77};
  EXPECT_EQ(bytes_of(2, crop), bytes_of(0, crop));  // after the class's last comes its first
  EXPECT_EQ(bytes_of(3, crop), bytes_of(4, crop));
  EXPECT_EQ(bytes_of(5, crop), bytes_of(4, crop));
  EXPECT_EQ(patient.train->label(5), 1);
  const std::vector<std::string> notes = patient.train->take_notes();
  ASSERT_EQ(notes.size(), 3u);  // each once
  expect_contains(notes[0],
                  {"train/a/2.jpg: is a damaged JPEG", "the next image of its class replaces it"});
  EXPECT_TRUE(patient.train->take_notes().empty());
  // The order in which threads find them does not matter.
  const std::vector<float> expected = read_all(*load(folder, skip).train, 1);
  EXPECT_EQ(read_all(*load(folder, skip).train, 4), expected);
  EXPECT_EQ(read_all(*patient.train, 2), expected);

  folder.write("train/b/1.jpg", damaged_jpeg(7));
  const Dataset hopeless = load(folder, skip);
  expect_contains(failure([&] { static_cast<void>(hopeless.train->read(4, {}, scratch)); }),
                  {"class b of folder train: no image can be decoded"});
}

// Bad images found while mean and deviation were measured are not reported again in training.
TEST(BadImages, AreNamedOnce) {
  const TempFolder folder;
  for (std::uint32_t i = 0; i < 10; ++i) {
    folder.write("train/a/" + std::to_string(i) + ".jpg",
                 i < 7 ? damaged_jpeg(i) : make_jpeg(50, 40, i));
    folder.write("train/b/" + std::to_string(i) + ".jpg", {});
    folder.write("train/c/" + std::to_string(i) + ".png", make_png(20, 20, i));
  }
  for (const char* name : {"val/a/1.png", "val/b/1.png", "val/c/1.png"}) {
    folder.write(name, make_png(20, 20, 1));
  }
  const Dataset data = load(folder, {.image_size = 16, .bad_images = BadImages::skip});
  ASSERT_EQ(data.warnings.size(), 8u);
  expect_contains(data.warnings[0], {"10 of 30 images cannot be read: ", "train/b/4.jpg: is empty",
                                     "; and 5 more; they are left out"});
  EXPECT_EQ(data.warnings[0].find("train/b/5.jpg"), std::string::npos);
  EXPECT_EQ(data.warnings[1], "class b: none of its training images can be read");
  expect_contains(data.warnings[2], {"train/a/0.jpg: is a damaged JPEG"});
  expect_contains(data.warnings[6], {"train/a/4.jpg: is a damaged JPEG"});
  expect_contains(data.warnings[7], {"2 more images cannot be decoded"});
  static_cast<void>(read_all(*data.train, 2));
  EXPECT_TRUE(data.train->take_notes().empty());
}

TEST(BadImages, AFileThatChangesInTheRunEndsIt) {
  const TempFolder folder;
  write_usual(folder);
  const Dataset data = load(folder, {.image_size = 16, .bad_images = BadImages::skip});
  folder.write("train/cat/0.png", make_png(9, 9, 1));
  Bytes scratch;
  expect_contains(failure([&] { static_cast<void>(data.train->read(0, {}, scratch)); }),
                  {"train/cat/0.png: has changed size since the run began"});
  std::filesystem::remove(folder / "train/cat/0.png");
  expect_contains(failure([&] { static_cast<void>(data.train->read(0, {}, scratch)); }),
                  {"train/cat/0.png: is a link to nothing"});
}

// A large image passes through the decoder row by row.
TEST(ImageFolder, ALargeImageTakesLittleMemory) {
  const TempFolder folder;
  constexpr std::uint32_t kSide = 8'192;
  folder.write("a/1.png", make_png(kSide, kSide, Bytes(kSide / 8 * kSide),
                                   {.colour = PNG_COLOR_TYPE_GRAY, .bits = 1}));
  folder.write("a/2.png", make_png(8, 8, 1));
  folder.write("b/1.png", make_png(8, 8, 2));
  folder.write("b/2.png", make_png(8, 8, 3));
  const Dataset data =
      load(folder, {.mean = {{0, 0, 0}}, .deviation = {{1, 1, 1}}, .image_size = 16});
  const auto peak_kib = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kib();
  Bytes scratch;
  for (const auto* source : {&data.train, &data.test}) {
    for (std::size_t i = 0; i < (*source)->count(); ++i) {
      static_cast<void>((*source)->read(i, {}, scratch));
      static_cast<void>((*source)->read(i, {.is_drawn = true, .bits = 5}, scratch));
    }
  }
  EXPECT_LT(peak_kib() - before, 32 * 1024);  // its pixels are 256 MiB
}

// ---- packs --------------------------------------------------------------------------------------

PackReport pack(const TempFolder& folder, const std::string& path, BadImages bad = BadImages::fail,
                std::size_t threads = 3) {
  return write_image_pack(
      {.folder = folder.path().string(), .path = path, .bad_images = bad, .threads = threads});
}

TEST(Pack, HasTheFoldersBits) {
  const TempFolder folder, out;
  write_usual(folder);
  const PackReport report = pack(folder, out / "a.h5");
  EXPECT_EQ(report.images, 16u);
  EXPECT_EQ(report.parts, (std::vector<std::string>{"train: 12 images", "val: 4 images"}));
  const DatasetRequest request = {.image_size = 24};
  const Dataset files = load(folder, request);
  const Dataset packed = load(folder, {.data_dir = out / "a.h5", .image_size = 24});
  EXPECT_EQ(content_hash(packed), content_hash(files));
  EXPECT_EQ(packed.about, files.about);
  EXPECT_EQ(read_all(*packed.train, 2), read_all(*files.train, 1));
  EXPECT_EQ(read_all(*packed.test, 1), read_all(*files.test, 2));
  EXPECT_EQ(detect_dataset(out / "a.h5"), "folder");
  // The same for any number of threads.
  static_cast<void>(pack(folder, out / "b.h5", BadImages::fail, 1));
  EXPECT_EQ(content_hash(load(folder, {.data_dir = out / "b.h5", .image_size = 24})),
            content_hash(files));
  expect_contains(failure([&] { static_cast<void>(pack(folder, out / "a.h5")); }),
                  {"pack ", "a.h5: exists"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out.path()), {}), 2);
}

TEST(Pack, DividesLikeTheFolder) {
  const TempFolder folder, out;
  for (std::uint32_t i = 0; i < 20; ++i) {
    folder.write((i < 9 ? "a/" : "b/") + std::to_string(i) + ".png", make_png(8, 8, i));
  }
  static_cast<void>(pack(folder, out / "a.h5"));
  const Dataset files = load(folder, {.validation_share = 0.3});
  const Dataset packed = load(folder, {.data_dir = out / "a.h5", .validation_share = 0.3});
  EXPECT_EQ(content_hash(packed), content_hash(files));
  EXPECT_EQ(read_all(*packed.test, 1), read_all(*files.test, 1));
}

TEST(Pack, BadImagesAreLeftOutOrEndIt) {
  const TempFolder folder, out;
  write_usual(folder);
  folder.write("train/cat/0.jpg", damaged_jpeg(1));
  expect_contains(failure([&] { static_cast<void>(pack(folder, out / "a.h5")); }),
                  {"1 image cannot be read", "train/cat/0.jpg: is a damaged JPEG"});
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
  folder.write("train/dog/empty.jpg", {});
  const PackReport report = pack(folder, out / "a.h5", BadImages::skip);
  EXPECT_EQ(report.images, 16u);
  ASSERT_EQ(report.warnings.size(), 2u);
  const Dataset data = load(folder, {.data_dir = out / "a.h5", .image_size = 16});
  EXPECT_EQ(data.train->count(), 12u);
  std::filesystem::remove(folder / "train/cat/0.jpg");
  std::filesystem::remove(folder / "train/dog/empty.jpg");
  EXPECT_EQ(read_all(*data.train, 1), read_all(*load(folder, {.image_size = 16}).train, 1));
}

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Pack, DamageIsNamed) {
  const TempFolder folder, out;
  write_usual(folder);
  static_cast<void>(pack(folder, out / "a.h5"));
  const Bytes good = read_file(out / "a.h5");
  // A byte of an image.
  const Bytes image = read_file(folder / "train/cat/10.jpg");
  const auto at = std::search(good.begin(), good.end(), image.begin(), image.end());
  ASSERT_NE(at, good.end());
  Bytes bytes = good;
  bytes[static_cast<std::size_t>(at - good.begin()) + 200] ^= 1;
  out.write("b.h5", bytes);
  const Dataset data = load(
      folder,
      {.data_dir = out / "b.h5", .mean = {{0, 0, 0}}, .deviation = {{1, 1, 1}}, .image_size = 16});
  Bytes scratch;
  expect_contains(failure([&] {
                    for (std::size_t i = 0; i < 12; ++i) {
                      static_cast<void>(data.train->read(i, {}, scratch));
                    }
                  }),
                  {"b.h5, train/cat/10.jpg: is damaged: its checksum differs"});
  // Cut off, at any length; and no pack at all.
  for (std::size_t length = 0; length < good.size(); length += good.size() / 19) {
    out.write("c.h5", Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)));
    const std::string message = load_failure(folder, {.data_dir = out / "c.h5", .image_size = 16});
    EXPECT_NE(message.find("c.h5"), std::string::npos) << message;
    EXPECT_EQ(message.find("HDF5"), std::string::npos) << message;
    if (length > 100) expect_contains(message, {"c.h5: is cut off or damaged; copy it again, or"});
  }
  // A table that claims rows for which nothing is stored.
  out.write("e.h5", good);
  const hid_t pack_file = H5Fopen((out / "e.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(pack_file, "train/label", H5P_DEFAULT);
  const hsize_t rows = 1000;
  const hid_t space = H5Screate_simple(1, &rows, nullptr);
  H5Dclose(H5Dcreate2(pack_file, "train/label", H5T_NATIVE_INT32, space, H5P_DEFAULT, H5P_DEFAULT,
                      H5P_DEFAULT));
  H5Sclose(space);
  H5Fclose(pack_file);
  expect_contains(load_failure(folder, {.data_dir = out / "e.h5"}),
                  {"e.h5: its table label has more rows than the file holds"});
  const hid_t file = H5Fcreate((out / "d.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  expect_contains(load_failure(folder, {.data_dir = out / "d.h5"}),
                  {"is an HDF5 file, but not a pack made by dptrain-pack"});
}

}  // namespace
}  // namespace dp
