#include "comm/replica_hash.hpp"

#include <xxhash.h>

#include <algorithm>

namespace dp {

std::uint64_t agree_on_hash(Communicator& communicator, std::span<const float> values) {
  const std::uint64_t mine = XXH3_64bits(values.data(), values.size_bytes());
  const auto all = communicator.all_gather(mine);
  // What most ranks hold is taken for right; the lowest rank's where no hash leads.
  std::uint64_t most = all[0];
  std::ptrdiff_t votes = 0;
  for (const std::uint64_t hash : all) {
    const auto n = std::count(all.begin(), all.end(), hash);
    if (n > votes) {
      votes = n;
      most = hash;
    }
  }
  std::string others;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == most) continue;
    others += fmt::format("{}rank {} ({:016x})", others.empty() ? "" : ", ", rank, all[rank]);
  }
  if (others.empty()) return most;
  throw AgreedError(
      ErrorKind::internal,
      fmt::format("the replicas differ: {} against {:016x} on the other ranks. Results "
                  "from here on are worthless; this is a bug of dptrain or a fault "
                  "of that host's memory",
                  others, most));
}

}  // namespace dp
