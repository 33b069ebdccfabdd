#include "app/checkpoint/run_state.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <type_traits>

#include "app/checkpoint/checkpoint_head.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Flags in the type of an entry, besides the block's type: the entry is a rank's own, or a text.
constexpr std::uint32_t kOwn = 0x100, kText = 0x200;

std::uint32_t type_of(const StateBlock& block) {
  return static_cast<std::uint32_t>(block.type) | (block.share == StateShare::own ? kOwn : 0);
}

std::uint32_t type_of(StateShare share) { return kText | (share == StateShare::own ? kOwn : 0); }

// Why an entry does not fit its place.
std::string mismatch(const Shard& shard, const std::string& name, std::size_t needed) {
  const auto bytes = shard.find(name);
  if (!bytes) return fmt::format("{}: has no entry {}", shard.name(), name);
  if (bytes->size() == needed) return {};
  return fmt::format("{}: its entry {} has {} bytes instead of {}", shard.name(), name,
                     bytes->size(), needed);
}

std::span<const std::byte> entry_of(const Shard& shard, const StateBlock& block) {
  const std::string why = mismatch(shard, block.name, block.bytes.size());
  if (!why.empty()) throw Error(ErrorKind::data, why);
  return *shard.find(block.name);
}

void write_block(Device& device, const StateBlock& block, std::span<const std::byte> bytes) {
  if (block.place == StatePlace::device) {
    device.upload(block.bytes.data(), bytes.data(), bytes.size());
  } else if (!bytes.empty()) {
    std::memcpy(block.bytes.data(), bytes.data(), bytes.size());
  }
}

// Adds the ranks' values in the order of ranks: floating-point values in double precision, integers
// exactly.
template <class Number>
std::vector<std::byte> merged(const StateBlock& block, const std::vector<const Shard*>& shards) {
  using Sum = std::conditional_t<std::is_floating_point_v<Number>, double, Number>;
  const std::size_t count = block.bytes.size() / sizeof(Number);
  std::vector<Sum> sums(count);
  for (const Shard* shard : shards) {
    const std::span<const std::byte> bytes = entry_of(*shard, block);
    for (std::size_t i = 0; i < count; ++i) {
      Number number;
      std::memcpy(&number, bytes.data() + i * sizeof(Number), sizeof(Number));
      if constexpr (std::is_floating_point_v<Number>) {
        sums[i] += number;
      } else if (__builtin_add_overflow(sums[i], number, &sums[i])) {
        throw_error(ErrorKind::data,
                    "{}: its entry {} overflows when the other parts' entries are added",
                    shard->name(), block.name);
      }
    }
  }
  if (block.merge == StateMerge::mean) {
    for (Sum& sum : sums) sum /= static_cast<Sum>(shards.size());
  }
  std::vector<std::byte> result(block.bytes.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<Number>(sums[i]);
    std::memcpy(result.data() + i * sizeof(Number), &number, sizeof(Number));
  }
  return result;
}

std::vector<std::byte> merged_as_typed(const StateBlock& block,
                                       const std::vector<const Shard*>& shards) {
  switch (block.type) {
    case StateType::f32:
      return merged<float>(block, shards);
    case StateType::f64:
      return merged<double>(block, shards);
    case StateType::i64:
      return merged<std::int64_t>(block, shards);
    case StateType::u64:
      return merged<std::uint64_t>(block, shards);
    case StateType::raw:
      break;
  }
  throw_error(ErrorKind::internal, "the state {} has no numeric type, so its parts cannot be added",
              block.name);
}

void restore_own(Device& device, const StateBlock& block, const std::vector<const Shard*>& own) {
  if (own.empty()) return;
  if (own.size() == 1 || block.add || block.merge == StateMerge::first) {
    write_block(device, block, entry_of(*own[0], block));
    if (!block.add) return;
    for (std::size_t i = 1; i < own.size(); ++i) block.add(entry_of(*own[i], block));
    return;
  }
  write_block(device, block, merged_as_typed(block, own));
}

}  // namespace

void copy_state(Device& device, const StateList& list,
                const std::vector<std::pair<std::string, std::string>>& texts, ShardImage& image) {
  std::vector<ShardEntry> entries;
  std::vector<std::string> values;
  for (const auto& [name, text] : texts) {
    entries.push_back({name, type_of(StateShare::own), text.size()});
    values.push_back(text);
  }
  for (const StateText& text : list.texts) {
    values.push_back(text.get());
    entries.push_back({text.name, type_of(text.share), values.back().size()});
  }
  for (const StateBlock& block : list.blocks) {
    entries.push_back({block.name, type_of(block), block.bytes.size()});
  }
  image.lay_out(std::move(entries));
  device.synchronize();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::ranges::copy(std::as_bytes(std::span(values[i])), image.bytes_of(i).begin());
  }
  for (std::size_t i = 0; i < list.blocks.size(); ++i) {
    const StateBlock& block = list.blocks[i];
    const std::span<std::byte> to = image.bytes_of(values.size() + i);
    if (block.place == StatePlace::device) {
      device.download(to.data(), block.bytes.data(), to.size());
    } else {
      std::ranges::copy(block.bytes, to.begin());
    }
  }
}

bool is_own_entry(const ShardEntry& entry) { return (entry.type & kOwn) != 0; }

namespace {

// hash_of(i): the hash of entry i's bytes.
template <class HashOf>
std::uint64_t hash_of_replicated(const std::vector<ShardEntry>& entries, HashOf hash_of) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (is_own_entry(entries[i])) continue;
    const auto more = std::array{hash, hash_of(i)};
    hash = XXH3_64bits(more.data(), sizeof(more));
  }
  return hash;
}

}  // namespace

std::uint64_t replicated_hash(const ShardImage& image) {
  return hash_of_replicated(image.entries(), [&](std::size_t i) { return image.hash_of(i); });
}

std::uint64_t replicated_hash(const Shard& shard) {
  return hash_of_replicated(shard.entries(), [&](std::size_t i) -> std::uint64_t {
    const std::span<const std::byte> bytes = shard.bytes_of(i);
    return XXH3_64bits(bytes.data(), bytes.size());
  });
}

std::vector<std::string> restore_state(Device& device, const StateList& list,
                                       const StateSources& sources) {
  device.synchronize();
  std::set<std::string> unused;
  const auto fits = [&](const std::string& name, std::size_t bytes, bool is_own) {
    const std::vector<const Shard*> shards =
        is_own ? sources.own : std::vector<const Shard*>{sources.replicated};
    for (const Shard* shard : shards) {
      const std::string why = mismatch(*shard, name, bytes);
      if (why.empty()) continue;
      if (sources.is_same_run) throw Error(ErrorKind::data, why);
      if (shard->find(name)) unused.insert(name);
      return false;
    }
    return !shards.empty();
  };
  std::set<std::string_view> listed = {kHeadEntry};
  for (const StateText& text : list.texts) {
    listed.insert(text.name);
    const bool is_own = text.share == StateShare::own;
    if (is_own && sources.own.empty()) continue;
    text.set((is_own ? sources.own[0] : sources.replicated)->text(text.name));
  }
  for (const StateBlock& block : list.blocks) {
    listed.insert(block.name);
    const bool is_own = block.share == StateShare::own;
    if (!fits(block.name, block.bytes.size(), is_own)) continue;
    if (is_own) {
      restore_own(device, block, sources.own);
    } else {
      write_block(device, block, entry_of(*sources.replicated, block));
    }
  }
  for (const ShardEntry& entry : sources.replicated->entries()) {
    if (listed.contains(entry.name)) continue;
    if (sources.is_same_run) {
      throw_error(ErrorKind::data, "{}: its entry {} is unknown to this run",
                  sources.replicated->name(), entry.name);
    }
    unused.insert(entry.name);
  }
  return {unused.begin(), unused.end()};
}

}  // namespace dp
