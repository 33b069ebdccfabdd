// Files: logs, weights, packs, CIFAR's records, lists of hosts.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "app/dptrun/dptrun_hosts.hpp"
#include "io/files/weights_file.hpp"
#include "io/images/cifar.hpp"
#include "io/images/image_pack.hpp"
#include "io/log/run_choices.hpp"
#include "io/log/run_log.hpp"
#include "io/log/run_log_earlier.hpp"
#include "io/log/run_log_image.hpp"
#include "kernels/base/error.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/io/images/image_files.hpp"

namespace dp::fuzz {
namespace {

namespace fs = std::filesystem;

// A folder that goes with the object; in memory, if there is a place.
class Folder {
 public:
  Folder() : path_((place() / "dptrain-fuzz-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] fs::path operator/(const std::string& name) const { return fs::path(path_) / name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static fs::path place() {
    const fs::path memory = "/dev/shm";
    return fs::is_directory(memory) ? memory : fs::temp_directory_path();
  }
  std::string path_;
};

Bytes content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, std::span<const std::uint8_t> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// A file of these bytes. HDF5 opens none that has no real path, such as /proc/self/fd/3.
class File {
 public:
  explicit File(std::span<const std::uint8_t> bytes) { write(path(), bytes); }
  [[nodiscard]] const std::string& path() const {
    static const Folder folder;
    static const std::string path = folder / "file";
    return path;
  }
};

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// The log of an earlier run: to go on with, and to choose by.
void read_log(std::span<const std::uint8_t> bytes) {
  const File file(bytes);
  ends_in_error_at_most([&] {
    auto log = read_run_log(file.path());
    if (!log) return;
    static_cast<void>(is_same_run(*log, *log));
    put_back(*log, {.has_steps = true, .first_epoch = 1, .first_step = 3});
  });
  ends_in_error_at_most([&] { static_cast<void>(read_run_choices(file.path())); });
}

using Config = std::vector<std::pair<std::string, std::string>>;

Bytes log_of(const Config& config) {
  const Folder folder;
  RunLog log = RunLog::create(folder / "log.h5", {.hosts = {"alpha", "beta"},
                                                  .devices = {"cpu"},
                                                  .codec_names = {"none", "q8"},
                                                  .topology_names = {"ring"},
                                                  .config = config,
                                                  .model_name = "resnet20",
                                                  .has_steps = true});
  log.set_attribute("/config", "precision", "fp32");
  log.set_attribute("/model", "algorithms", "conv 3x3 = direct\n");
  log.set_attribute("/", "exchange_path", "");
  log.set_attribute("/", "bucket_bytes", 4096.0);
  log.set_attribute("/", "round_steps", "1,2");
  log.append(EpochRow{.epoch = 0});
  log.append(EpochRow{.epoch = 1});
  const StepRow step{.step = 1, .planned_bits = 1.5};
  log.append(std::span(&step, 1));
  log.close(true);
  return content(folder / "log.h5");
}

std::vector<Bytes> log_seeds() {
  return {log_of({{"batch-size", "32"}}),
          log_of({{"batch-size", ""}, {"global-batch", "64"}, {"accumulate", "2"}})};
}

// A batch in no parts, and a table of steps that is far longer than the file.
std::vector<Bytes> log_findings() {
  const Bytes log = log_of({{"batch-size", "32"}}),
              no_parts = log_of({{"batch-size", ""}, {"global-batch", "64"}, {"accumulate", "0"}});
  const LogImage image(read_log_image(std::as_bytes(std::span(log)), empty_log_tables()));
  Bytes longer;
  for (const std::byte byte : image.bytes()) longer.push_back(static_cast<std::uint8_t>(byte));
  constexpr std::uint64_t kRows = std::uint64_t{1} << 40;
  std::memcpy(longer.data() + image.places()[LogTable::kSteps].length_at, &kRows, sizeof kRows);
  return {no_parts, longer};
}

void read_weights_file(std::span<const std::uint8_t> bytes) {
  const File file(bytes);
  for (const WhichWeights which : {WhichWeights::best, WhichWeights::last}) {
    ends_in_error_at_most([&] {
      const WeightsFile weights = read_weights(file.path(), which);
      for (const WeightTensor& tensor : weights.last.tensors) {
        std::size_t elements = 1;
        for (const std::size_t length : tensor.shape) elements *= length;
        if (elements != tensor.values.size()) __builtin_trap();
      }
    });
  }
}

std::vector<Bytes> weights_seeds() {
  const Folder folder;
  WeightsFile weights = {.model = "resnet20",
                         .classes = 10,
                         .image = {.channels = 3, .height = 32, .width = 32},
                         .normalization = {},
                         .last = {.tensors = {{"conv1.weight", {2, 3, 1, 1}, {1, 2, 3, 4, 5, 6}},
                                              {"bn1.bias", {2}, {7, 8}}}},
                         .best = {}};
  write_weights(folder / "one.h5", weights, false);
  weights.best = weights.last;
  write_weights(folder / "two.h5", weights, false);
  return {content(folder / "one.h5"), content(folder / "two.h5")};
}

void read_pack(std::span<const std::uint8_t> bytes) {
  const File file(bytes);
  ends_in_error_at_most([&] {
    if (!is_image_pack(file.path())) return;
    for (const ImageTree& tree : open_image_pack(file.path())) {
      std::vector<std::uint8_t> image;
      for (std::size_t i = 0; i < std::min<std::size_t>(tree.index->images.size(), 4); ++i) {
        const IndexedImage& entry = tree.index->images[i];
        if (tree.files->name_of(*tree.index, entry).empty()) __builtin_trap();
        ends_in_error_at_most([&] {
          try {
            tree.files->read(*tree.index, entry, image);
          } catch (const BadImage&) {
          }
        });
        if (image.size() > bytes.size()) __builtin_trap();
      }
    }
  });
}

std::vector<Bytes> pack_seeds() {
  std::vector<Bytes> seeds;
  for (const bool is_divided : {false, true}) {
    const Folder folder;
    for (const char* part : {"train/", "val/"}) {
      for (const char* name : {"cat", "dog"}) {
        const fs::path place = folder / "in" / (is_divided ? part : "") / name;
        fs::create_directories(place);
        write(place / "a.jpg", make_jpeg(19, 13, 1));
        write(place / "b.png", make_png(5, 7, 2));
      }
    }
    static_cast<void>(write_image_pack({.folder = folder / "in", .path = folder / "pack.h5"}));
    seeds.push_back(content(folder / "pack.h5"));
  }
  return seeds;
}

// The first byte says which of a data set's files is damaged; the others have a record each.
void read_cifar(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kPixels = 3072;
  struct Layout {
    Layout(std::size_t head, std::vector<std::string> its_names)
        : record(head + kPixels, 1), names(std::move(its_names)) {
      for (const std::string& name : names) write(folder / name, record);
    }
    Folder folder;
    Bytes record;
    std::vector<std::string> names;
  };
  static const Layout ten(1, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                              "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"});
  static const Layout hundred(2, {"train.bin", "test.bin", "fine_label_names.txt"});
  if (bytes.empty()) return;
  const Layout& layout = bytes[0] % 2 == 0 ? ten : hundred;
  const std::string& name = layout.names[bytes[0] / 2 % layout.names.size()];
  write(layout.folder / name, bytes.subspan(1));
  ends_in_error_at_most([&] {
    const DatasetRequest request = {.data_dir = layout.folder.path(),
                                    .limit_train = bytes[0] % 3 == 0 ? 2u : 0u};
    const Dataset data = &layout == &ten ? load_cifar10(request) : load_cifar100(request);
    if (data.train->count() * kPixels > bytes.size() + 6 * kPixels) __builtin_trap();
  });
  write(layout.folder / name, layout.record);
}

std::vector<Bytes> cifar_seeds() {
  std::vector<Bytes> seeds;
  for (std::uint8_t which = 0; which < 4; ++which) {
    Bytes seed(1 + 2 * (which % 2 == 0 ? 3073u : 3074u), 3);
    seed[0] = which;
    seeds.push_back(seed);
  }
  return seeds;
}

void read_hosts(std::span<const std::uint8_t> bytes) {
  const File file(bytes);
  const auto agree = [](const std::vector<RunHost>& hosts) {
    if (hosts.empty()) __builtin_trap();
  };
  ends_in_error_at_most([&] { agree(read_hostfile(file.path())); });
  ends_in_error_at_most([&] { agree(parse_hosts(std::string(bytes.begin(), bytes.end()))); });
}

std::vector<Bytes> hosts_seeds() {
  return {
      bytes_of("node1 slots=2\n# a comment\nnode2 max_slots=4 # more\n\n10.0.0.7 slots=65536\n"),
      bytes_of("alpha:2,beta,10.0.0.7:1")};
}

constexpr Target kTargets[] = {{"run_log", read_log, log_seeds, 20, true, log_findings},
                               {"weights", read_weights_file, weights_seeds, 20},
                               {"pack", read_pack, pack_seeds, 20},
                               {"cifar", read_cifar, cifar_seeds, 10, false},
                               {"hosts", read_hosts, hosts_seeds, 1, false}};

}  // namespace

std::span<const Target> file_targets() { return kTargets; }

}  // namespace dp::fuzz
