#include "io/files/checkpoint_file.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "io/files/whole_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::string_view kMagic = "dpckpt1\n";
constexpr const char* kDamaged = "is damaged: a hash of its contents is wrong";
constexpr std::size_t kHashed = 32, kHead = 40, kRow = 24;

template <class Number>
void put(std::vector<std::byte>& file, std::size_t at, Number number) {
  std::memcpy(file.data() + at, &number, sizeof(number));
}

template <class Number>
Number get(std::span<const std::byte> file, std::size_t at) {
  Number number;
  std::memcpy(&number, file.data() + at, sizeof(number));
  return number;
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Hashes the table and the part of the head that comes before the hash field.
std::uint64_t hash_of_table(std::span<const std::byte> file, std::size_t table) {
  return XXH3_64bits_withSeed(file.data() + kHead, table, hash_bytes(file.first(kHashed)));
}

}  // namespace

void ShardImage::lay_out(std::vector<ShardEntry> entries) {
  entries_ = std::move(entries);
  offsets_.clear();
  std::size_t at = kHead;
  for (const ShardEntry& entry : entries_) at += kRow + entry.name.size();
  for (const ShardEntry& entry : entries_) {
    offsets_.push_back(at);
    at += entry.size;
  }
  file_.resize(at);
}

std::span<std::byte> ShardImage::bytes_of(std::size_t index) {
  return std::span(file_).subspan(offsets_[index], entries_[index].size);
}

std::span<const std::byte> ShardImage::seal() {
  std::size_t at = kHead;
  hashes_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const ShardEntry& entry = entries_[i];
    hashes_.push_back(hash_bytes(bytes_of(i)));
    put(file_, at, std::uint64_t{entry.size});
    put(file_, at + 8, hashes_.back());
    put(file_, at + 16, entry.type);
    put(file_, at + 20, checked_cast<std::uint32_t>(entry.name.size()));
    std::memcpy(file_.data() + at + kRow, entry.name.data(), entry.name.size());
    at += kRow + entry.name.size();
  }
  const std::size_t table = at - kHead;
  std::memcpy(file_.data(), kMagic.data(), kMagic.size());
  put(file_, 8, std::uint64_t{file_.size()});
  put(file_, 16, std::uint64_t{table});
  put(file_, 24, std::uint64_t{entries_.size()});
  put(file_, kHashed, hash_of_table(file_, table));
  return file_;
}

Shard::Shard(std::vector<std::byte> file, std::string name)
    : file_(std::move(file)), name_(std::move(name)) {
  check_head(file_.size());
  read_table();
  check_entries();
}

Shard Shard::read(const std::string& path) {
  Shard shard(path);
  InputFile file(path);
  file.read_up_to(std::min<std::uint64_t>(kHead, file.size()), shard.file_);
  shard.check_head(file.size());
  file.read_up_to(shard.end_of_table(), shard.file_);
  shard.read_table();
  file.read_up_to(file.size(), shard.file_);
  shard.check_entries();
  return shard;
}

void Shard::refuse(const std::string& why) const {
  throw_error(ErrorKind::data, "{}: {}", name_, why);
}

std::size_t Shard::end_of_table() const { return kHead + get<std::uint64_t>(file_, 16); }

void Shard::check_head(std::uint64_t size) const {
  const std::string_view begin(reinterpret_cast<const char*>(file_.data()), file_.size());
  if (!begin.starts_with(kMagic) && !kMagic.starts_with(begin)) {
    refuse("is not a checkpoint file");
  }
  if (file_.size() < kHead) refuse(fmt::format("is cut off: {} bytes are left of it", size));
  const auto whole = get<std::uint64_t>(file_, 8), table = get<std::uint64_t>(file_, 16),
             count = get<std::uint64_t>(file_, 24);
  if (whole > size) {
    refuse(fmt::format("is cut off: only {} of {} bytes are left", size, whole));
  }
  if (whole != size || table > size - kHead || count > table / kRow) refuse(kDamaged);
}

void Shard::read_table() {
  const std::size_t end = end_of_table();
  if (file_.size() < end ||
      get<std::uint64_t>(file_, kHashed) != hash_of_table(file_, end - kHead)) {
    refuse(kDamaged);
  }
  // The hash is correct, so the checks below fail only if another program wrote the file.
  const auto count = get<std::uint64_t>(file_, 24);
  std::size_t at = kHead, left = get<std::uint64_t>(file_, 8) - end, offset = end;
  std::set<std::string_view> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (end - at < kRow) refuse(kDamaged);
    const auto bytes = get<std::uint64_t>(file_, at), hash = get<std::uint64_t>(file_, at + 8);
    const auto type = get<std::uint32_t>(file_, at + 16),
               length = get<std::uint32_t>(file_, at + 20);
    at += kRow;
    if (length > end - at || bytes > left) refuse(kDamaged);
    const std::string_view entry(reinterpret_cast<const char*>(file_.data() + at), length);
    at += length;
    if (!names.insert(entry).second) refuse(kDamaged);
    entries_.push_back({std::string(entry), type, bytes});
    offsets_.push_back(offset);
    hashes_.push_back(hash);
    offset += bytes;
    left -= bytes;
  }
  if (at != end || left != 0) refuse(kDamaged);
}

void Shard::check_entries() const {
  if (file_.size() != get<std::uint64_t>(file_, 8)) {
    refuse(fmt::format("is cut off: {} bytes are left of it", file_.size()));
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (hash_bytes(bytes_of(i)) != hashes_[i]) {
      refuse(fmt::format("is damaged: the hash of its entry {} is wrong", entries_[i].name));
    }
  }
}

std::span<const std::byte> Shard::bytes_of(std::size_t index) const {
  return std::span(file_).subspan(offsets_[index], entries_[index].size);
}

std::optional<std::span<const std::byte>> Shard::find(std::string_view name) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].name == name) return bytes_of(i);
  }
  return std::nullopt;
}

std::string Shard::text(std::string_view name) const {
  const auto bytes = find(name);
  if (!bytes) throw_error(ErrorKind::data, "{}: has no entry {}", name_, name);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

}  // namespace dp
