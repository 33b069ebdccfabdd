// A rank's part of a checkpoint: the table of its entries, its head, and the state that is restored
// from it.
//
// Hashes cover every byte, so almost every change would end at the first of them. Therefore the
// bytes are read three times: as they are; with hashes and the file's size that are right for them;
// and with a size of the last entry that fits, too, so that what a change adds or takes away is a
// part of that entry.
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/checkpoint/fingerprint.hpp"
#include "app/checkpoint/run_state.hpp"
#include "app/options/options.hpp"
#include "io/files/checkpoint_file.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "kernels/tuning.hpp"
#include "tests/fuzz/targets.hpp"

namespace dp::fuzz {
namespace {

// ---- hashes that are right (checkpoint_file.hpp has the format) ----

constexpr std::size_t kHashed = 32, kHead = 40, kRow = 24;

template <class Number>
Number get(const Bytes& file, std::size_t at) {
  Number number;
  std::memcpy(&number, file.data() + at, sizeof(number));
  return number;
}

void put(Bytes& file, std::size_t at, std::uint64_t number) {
  std::memcpy(file.data() + at, &number, sizeof(number));
}

Bytes resealed(std::span<const std::uint8_t> bytes, bool fits_last_entry) {
  Bytes file(bytes.begin(), bytes.end());
  if (file.size() < kHead) return file;
  put(file, 8, file.size());
  const auto table = get<std::uint64_t>(file, 16), count = get<std::uint64_t>(file, 24);
  if (table > file.size() - kHead) return file;
  const std::size_t end = kHead + table;
  std::size_t at = kHead, offset = end;
  for (std::uint64_t i = 0; i < count && end - at >= kRow; ++i) {
    if (fits_last_entry && i + 1 == count) put(file, at, file.size() - offset);
    const auto size = get<std::uint64_t>(file, at);
    const auto length = get<std::uint32_t>(file, at + 20);
    if (length > end - at - kRow || size > file.size() - offset) break;
    put(file, at + 8, XXH3_64bits(file.data() + offset, size));
    at += kRow + length;
    offset += size;
  }
  put(file, kHashed,
      XXH3_64bits_withSeed(file.data() + kHead, table, XXH3_64bits(file.data(), kHashed)));
  return file;
}

// ---- a run's state, of every kind ----

class State {
 public:
  State() {
    list.values<float>("weights", weights_, StateShare::replicated, StatePlace::device);
    list.values<float>("residual", residual_, StateShare::own);
    list.values<double>("mean", mean_, StateShare::own, StatePlace::host, StateMerge::mean);
    list.value("step", step_);
    list.value("count", count_, StateShare::own);
    list.value("total", total_, StateShare::own);
    list.value("first", first_, StateShare::own, StateMerge::first);
    list.object("times", times_,
                [](Times& sum, const Times& more) { sum.spent_s += more.spent_s; });
    list.text({.name = "algorithms",
               .get = [this] { return tuning.export_text(); },
               .set = [this](const std::string& text) { tuning.import_text(text); }});
  }

  Tuning tuning{false};
  StateList list;

 private:
  struct Times {
    double spent_s = 1.5;
  };
  std::array<float, 5> weights_ = {1, -2, 3, -4, 5}, residual_ = {};
  std::array<double, 2> mean_ = {0.5, 0.25};
  std::uint64_t step_ = 7, total_ = 8;
  std::int64_t count_ = 9, first_ = 10;
  Times times_;
};

// Its memory is the host's; nothing is computed.
class MemoryDevice final : public Device {
 public:
  MemoryDevice() : Device({}) {}
  [[nodiscard]] std::string description() const override { return "memory"; }
  [[nodiscard]] bool supports(DataType) const override { return false; }
  [[nodiscard]] std::size_t channel_block(std::size_t) const override { return 1; }
  void reserve_scratch(std::size_t) override {}
  [[nodiscard]] std::byte* scratch() override { return nullptr; }
  [[nodiscard]] Memory allocate(std::size_t) override { return nullptr; }
  [[nodiscard]] Memory allocate_host(std::size_t) override { return nullptr; }
  [[nodiscard]] std::size_t free_bytes() const override { return 0; }
  void upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void copy(void*, const void*, std::size_t) override {}
  void fill_zero(void*, std::size_t) override {}
  void synchronize() override {}
  [[nodiscard]] std::unique_ptr<Recording> record(std::function<void()>) override {
    return nullptr;
  }
  [[nodiscard]] std::unique_ptr<TimeMarks> make_time_marks(std::size_t) override { return nullptr; }
};

Device& device() {
  static MemoryDevice made;
  return made;
}

bool is_same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return std::ranges::equal(one, other);
}

void restore(const Shard& shard) {
  ends_in_error_at_most([&] {
    State state;
    static_cast<void>(restore_state(device(), state.list, {.replicated = &shard, .own = {&shard}}));
    for (const StateBlock& block : state.list.blocks) {
      if (!is_same(block.bytes, shard.find(block.name).value())) __builtin_trap();
    }
  });
  ends_in_error_at_most([&] {
    State state;
    static_cast<void>(
        restore_state(device(), state.list,
                      {.replicated = &shard, .own = {&shard, &shard}, .is_same_run = false}));
  });
}

RunFacts usual_facts() { return {.hosts = {"alpha"}, .device = "cpu\nAVX2\\"}; }

void read_head(const std::string& text) {
  const CheckpointHead head(text);
  if (CheckpointHead(head.text()).text() != head.text()) __builtin_trap();
  const Options options;
  const RunFacts facts = usual_facts();
  ends_in_error_at_most([&] { static_cast<void>(compare_options(head, options)); });
  ends_in_error_at_most([&] { static_cast<void>(compare_facts(head, options, facts)); });
  ends_in_error_at_most([&] { static_cast<void>(is_same_fleet(head, facts)); });
  ends_in_error_at_most([&] { static_cast<void>(head.number("bucket_bytes")); });
}

void read_algorithms(const std::string& text) {
  Tuning tuning(false), same(false);
  tuning.import_text(text);
  same.import_text(tuning.export_text());
  if (same.export_text() != tuning.export_text()) __builtin_trap();
}

void read_whole(std::span<const std::uint8_t> bytes) {
  ends_in_error_at_most([&] {
    const auto all = std::as_bytes(bytes);
    const Shard shard({all.begin(), all.end()}, "shard");
    std::size_t sum = 0;
    for (std::size_t i = 0; i < shard.entries().size(); ++i) sum += shard.bytes_of(i).size();
    if (sum > bytes.size()) __builtin_trap();
    static_cast<void>(replicated_hash(shard));
    restore(shard);
    ends_in_error_at_most([&] { read_head(shard.text(kHeadEntry)); });
    ends_in_error_at_most([&] { read_algorithms(shard.text("algorithms")); });
  });
}

void read_shard(std::span<const std::uint8_t> bytes) {
  read_whole(bytes);
  read_whole(resealed(bytes, false));
  read_whole(resealed(bytes, true));
}

// Every one of the texts is the last entry of a seed, and a block of another one.
std::vector<Bytes> shard_seeds() {
  State state;
  state.tuning.import_text("conv 3x3 = direct\npool = simple\n");
  CheckpointHead head;
  add_options(head, Options{});
  add_facts(head, usual_facts());
  head.set("bucket_bytes", std::uint64_t{4096});
  ShardImage image;
  copy_state(device(), state.list, {{std::string(kHeadEntry), head.text()}}, image);
  static_cast<void>(image.seal());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < image.entries().size(); ++i) order.push_back(i);
  std::vector<Bytes> seeds;
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<ShardEntry> entries;
    for (const std::size_t i : order) entries.push_back(image.entries()[i]);
    ShardImage turned;
    turned.lay_out(entries);
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::ranges::copy(image.bytes_of(order[i]), turned.bytes_of(i).begin());
    }
    Bytes& seed = seeds.emplace_back();
    for (const std::byte byte : turned.seal()) seed.push_back(static_cast<std::uint8_t>(byte));
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
  return seeds;
}

constexpr Target kTargets[] = {{"shard", read_shard, shard_seeds, 3}};

}  // namespace

std::span<const Target> checkpoint_targets() { return kTargets; }

}  // namespace dp::fuzz
