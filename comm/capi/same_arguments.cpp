#include "comm/capi/same_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace dp::capi {
namespace {

struct Given {
  std::string what, value;
};

std::string or_null(const char* text) { return text == nullptr ? "NULL" : text; }

std::vector<Given> list(const Layout& layout, const dptrain_comm_options& given) {
  std::vector<Given> all = {
      {"the library's version", DPTRAIN_COMM_VERSION},
      {"compress", given.compress},
      {"topology", or_null(given.topology)},
      {"exact", or_null(given.exact)},
      {"codecs", or_null(given.codecs)},
      {"shards", fmt::format("{}", given.shards)},
      {"seed", fmt::format("{}", given.seed)},
      {"bucket_bytes", fmt::format("{}", given.bucket_bytes)},
      {"timeout_s", fmt::format("{}", given.timeout_s)},
      {"link_bit_per_s", fmt::format("{}", given.link_bit_per_s)},
      // Ranks may pass different file names, because only rank 0 writes the file.
      {"trace", given.trace == nullptr
                    ? "NULL"
                    : fmt::format("of {} steps after {}", given.trace_steps, given.trace_first)},
      {"optimizer", fmt::format("{}", given.optimizer)},
      {"has_nesterov", fmt::format("{}", given.has_nesterov)},
      {"momentum", fmt::format("{}", given.momentum)},
      {"beta1", fmt::format("{}", given.beta1)},
      {"beta2", fmt::format("{}", given.beta2)},
      {"epsilon", fmt::format("{}", given.epsilon)},
      {"the number of slots", fmt::format("{}", layout.tensor_of_slot.size())}};
  for (std::size_t slot = 0; slot < layout.tensor_of_slot.size(); ++slot) {
    const TensorSlot& tensor = layout.tensors[layout.tensor_of_slot[slot]];
    all.push_back(
        {fmt::format("slot {}", slot), fmt::format("'{}', {} x {}{}", tensor.name, tensor.rows,
                                                   tensor.columns, tensor.is_1d ? ", is_1d" : "")});
  }
  return all;
}

constexpr char kEnd = '\0';  // no value contains it

// Removes the first value and returns it.
std::string_view take_value(std::string_view& values) {
  const std::string_view value = values.substr(0, values.find(kEnd));
  values.remove_prefix(std::min(value.size() + 1, values.size()));
  return value;
}

}  // namespace

void agree_on(const Layout& layout, const dptrain_comm_options& given, Communicator& comm) {
  const std::vector<Given> mine = list(layout, given);
  std::string values;
  for (const Given& one : mine) values += one.value + kEnd;
  comm.broadcast(values);

  std::string_view of_rank_0 = values;
  std::string difference;
  for (const Given& one : mine) {
    const std::string_view other = take_value(of_rank_0);
    if (one.value == other) continue;
    difference = fmt::format("{} is {} on rank {} and {} on rank 0; all ranks must give the same",
                             one.what, one.value, comm.rank(), other);
    break;
  }
  comm.agree(difference.empty(), difference);
}

}  // namespace dp::capi
