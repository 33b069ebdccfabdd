#include "comm/replica_hash.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace dp {
namespace {

// The most frequent hash, which is taken to be right. If several hashes are equally frequent, the
// one that appears at the lowest rank is returned.
std::uint64_t usual_of(std::span<const std::uint64_t> all) {
  std::uint64_t most = all[0];
  std::ptrdiff_t votes = 0;
  for (const std::uint64_t hash : all) {
    const auto n = std::ranges::count(all, hash);
    if (n > votes) {
      votes = n;
      most = hash;
    }
  }
  return most;
}

// If the ranks' hashes are not all equal, all ranks call `first()` and throw an error whose message
// includes the text from `first()`.
template <class First>
std::uint64_t agree(Communicator& communicator, std::uint64_t mine, std::string_view where,
                    std::string_view consequence, First first) {
  const std::vector<std::uint64_t> all = communicator.all_gather(mine);
  const std::uint64_t usual = usual_of(all);
  std::string others;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == usual) continue;
    others += fmt::format("{}rank {} on host {} ({:016x})", others.empty() ? "" : ", ", rank,
                          communicator.hosts()[rank], all[rank]);
  }
  if (others.empty()) return usual;
  throw AgreedError(
      ErrorKind::internal,
      fmt::format("the replicas differ{}{}: {} against {:016x} on the other ranks. {}. The cause "
                  "is a bug of dptrain or a fault of that host's memory",
                  where, first(), others, usual, consequence));
}

constexpr std::string_view kWorthless = "Results from here on are worthless";

}  // namespace

std::uint64_t agree_on_hash(Communicator& communicator, std::span<const float> values) {
  return agree(communicator, XXH3_64bits(values.data(), values.size_bytes()), "", kWorthless,
               [] { return std::string(); });
}

std::uint64_t agree_on_state(Communicator& communicator, std::span<const StateBlock> blocks,
                             Device* device) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> parameters(XXH3_createState(),
                                                                            &XXH3_freeState);
  XXH3_64bits_reset(parameters.get());
  std::vector<HashedPart> parts;
  std::vector<std::byte> copy;
  for (const StateBlock& block : blocks) {
    if (block.share != StateShare::replicated) continue;
    std::span<const std::byte> bytes = block.bytes;
    if (block.place == StatePlace::device && device->kind() != DeviceKind::cpu) {
      copy.resize(bytes.size());
      device->download(copy.data(), bytes.data(), bytes.size());
      bytes = copy;
    }
    parts.push_back({block.name, bytes.size(), XXH3_64bits(bytes.data(), bytes.size())});
    if (block.name.starts_with(kParameterState)) {
      XXH3_64bits_update(parameters.get(), bytes.data(), bytes.size());
    }
  }
  agree_on_parts(communicator, parts, "", kWorthless);
  return XXH3_64bits_digest(parameters.get());
}

void agree_on_parts(Communicator& communicator, std::span<const HashedPart> parts,
                    std::string_view where, std::string_view consequence) {
  std::vector<std::uint64_t> hashes;
  for (const HashedPart& part : parts) hashes.push_back(part.hash);
  agree(communicator, XXH3_64bits(hashes.data(), hashes.size() * sizeof(hashes[0])), where,
        consequence, [&] {
          const auto ranks = static_cast<std::size_t>(communicator.size());
          std::vector<std::uint64_t> all(hashes.size() * ranks), of_part(ranks);
          communicator.all_gather(std::span<const std::uint64_t>(hashes), std::span(all));
          for (std::size_t i = 0; i < hashes.size(); ++i) {
            for (std::size_t rank = 0; rank < ranks; ++rank)
              of_part[rank] = all[rank * hashes.size() + i];
            const auto equal = std::ranges::count(of_part, of_part[0]);
            if (static_cast<std::size_t>(equal) < ranks) {
              return fmt::format(", first in {} ({} bytes)", parts[i].name, parts[i].bytes);
            }
          }
          return std::string();
        });
}

}  // namespace dp
