#include "app/training/restore.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "app/checkpoint/run_state.hpp"
#include "comm/mpi/send_bytes.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::string_view kResidual = "exchange/residual";

std::vector<float> read_floats(Device& device, const StateBlock& block) {
  std::vector<float> values(block.bytes.size() / sizeof(float));
  if (block.place == StatePlace::device) {
    device.download(values.data(), block.bytes.data(), block.bytes.size());
  } else {
    std::memcpy(values.data(), block.bytes.data(), block.bytes.size());
  }
  return values;
}

void write_floats(Device& device, const StateBlock& block, const std::vector<float>& values) {
  if (block.place == StatePlace::device) {
    device.upload(block.bytes.data(), values.data(), block.bytes.size());
  } else {
    std::memcpy(block.bytes.data(), values.data(), block.bytes.size());
  }
}

void write_shares(Device& device, const StateBlock& block, std::span<const double> sums,
                  double ranks) {
  std::vector<float> values(sums.size());
  std::ranges::transform(sums, values.begin(),
                         [ranks](double sum) { return static_cast<float>(sum / ranks); });
  write_floats(device, block, values);
}

// Averages the state that differs between ranks. A rank without state of its own in the checkpoint
// takes the mean of the other ranks' running statistics. If ranks exchange in rounds, it also takes
// the mean of their parameters and optimiser state. State with StateMerge::spread is summed over
// ranks and divided equally.
void average_own(Device& device, Communicator& comm, const StateList& list, bool has_own) {
  const auto with = comm.all_sum(std::int64_t{has_own});
  if (with == 0) return;
  for (const StateBlock& block : list.blocks) {
    const bool is_spread = block.merge == StateMerge::spread;
    const bool is_mean = block.merge == StateMerge::mean && with < comm.size();
    if (block.share != StateShare::own || !(is_mean || is_spread)) continue;
    if (block.type == StateType::u64) {  // the number of updates
      std::uint64_t count = 0;
      std::memcpy(&count, block.bytes.data(), sizeof(count));
      const std::int64_t sum = comm.all_sum(has_own ? static_cast<std::int64_t>(count) : 0);
      count = static_cast<std::uint64_t>(sum / with);
      if (!has_own) std::memcpy(block.bytes.data(), &count, sizeof(count));
      continue;
    }
    std::vector<float> values = read_floats(device, block);
    std::vector<double> sums(values.size());
    if (has_own) std::ranges::copy(values, sums.begin());
    comm.all_sum(sums);
    if (is_spread) {
      write_shares(device, block, sums, comm.size());
    } else if (!has_own) {
      write_shares(device, block, sums, static_cast<double>(with));
    }
  }
}

}  // namespace

void bring_residuals_to_leaders(Device& device, Communicator& comm, const StateList& list,
                                std::span<const int> hosts) {
  const auto found = std::ranges::find(list.blocks, kResidual, &StateBlock::name);
  if (found == list.blocks.end()) return;
  std::vector<float> mine = read_floats(device, *found);
  const auto leader_of = [&](std::size_t rank) {
    return static_cast<std::size_t>(std::ranges::find(hosts, hosts[rank]) - hosts.begin());
  };
  const auto me = static_cast<std::size_t>(comm.rank());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t leader = leader_of(rank);
    if (leader == rank) continue;
    if (me == rank) {
      send_bytes(comm, std::as_bytes(std::span(mine)), static_cast<int>(leader));
      std::ranges::fill(mine, 0.0f);
    } else if (me == leader) {
      const std::vector<std::byte> bytes = receive_bytes(comm, static_cast<int>(rank));
      if (bytes.size() != mine.size() * sizeof(float)) {
        throw_error(ErrorKind::internal,
                    "the residual of rank {} has another size than this rank's", rank);
      }
      std::vector<float> other(mine.size());
      std::memcpy(other.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += other[i];
    }
  }
  write_floats(device, *found, mine);
}

std::vector<std::string> restore_run(Replica& replica, const StateList& list,
                                     const ResumePoint& point, const RunFacts& facts,
                                     bool is_hierarchical) {
  StateSources sources;
  for (const Shard& shard : point.own) sources.own.push_back(&shard);
  sources.replicated = point.replicated ? &*point.replicated : sources.own.at(0);
  sources.is_same_run = is_same_fleet(point.head, facts) && point.lost.empty();
  std::vector<std::string> unused;
  Reducer& reducer = replica.sync().reducer();
  reducer.run([&](Communicator& comm) {
    comm.together([&] { unused = restore_state(replica.device(), list, sources); });
    if (sources.is_same_run) return;
    average_own(replica.device(), comm, list, !point.own.empty());
    replica.policy().merge_ranks(comm, point.own.size());
    if (is_hierarchical) {
      bring_residuals_to_leaders(replica.device(), comm, list, reducer.hosts());
    }
  });
  std::vector<std::string> lines;
  if (!point.lost.empty()) {
    lines.push_back(
        fmt::format("the part of rank{} {} is lost: values that {} had not sent yet count as zero, "
                    "and running statistics are the mean over the other ranks",
                    point.lost.size() == 1 ? "" : "s", fmt::join(point.lost, ", "),
                    point.lost.size() == 1 ? "it" : "they"));
  }
  if (!unused.empty()) {
    lines.push_back(
        fmt::format("not carried over from the checkpoint: {}", fmt::join(unused, ", ")));
  }
  return lines;
}

}  // namespace dp
