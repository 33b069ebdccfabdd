// Outline: for_each_piece() defines the format; saving writes its pieces in order. read_state()
// parses and checks a state by itself, without an exchange to compare it with. load_state() then
// requires that the parsed parts match those of this exchange's state, and copies them.
// merge_states() instead matches tensors by name and shape and adds up the parts of several ranks.
// weights() gives each rank's weight in such a sum. load_state() and merge_states() check
// everything before they change anything.
#include "comm/capi/saved_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mpi/seal.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The first line of a saved state. Formats differ in the digit at kNumberAt.
constexpr std::string_view kMark = "dptrain_comm state 4\n";
constexpr std::size_t kNumberAt = 19;
static_assert(kMark[kNumberAt] == '4');
static_assert(sizeof(StateOrigin) == 24);

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}

  std::span<const std::byte> take(std::uint64_t size) {
    if (size > from_.size()) {
      throw_error(ErrorKind::data, "the saved state of the exchange is truncated");
    }
    const std::span<const std::byte> taken = from_.first(size);
    from_ = from_.subspan(size);
    return taken;
  }
  std::uint64_t take_number() {
    std::uint64_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }
  // The name of a part: at most 100 printable ASCII characters.
  std::string take_name() {
    const std::string name = take_text();
    constexpr std::size_t kMost = 100;
    if (name.size() > kMost ||
        std::ranges::any_of(name, [](char c) { return c < ' ' || c > '~'; })) {
      throw_error(ErrorKind::data,
                  "the saved state of the exchange is damaged: the {} bytes of a part's name "
                  "are not a valid name; load a state that this rank has saved",
                  name.size());
    }
    return name;
  }
  std::string take_text() { return text_of(take(take_number())); }
  [[nodiscard]] bool is_at_end() const { return from_.empty(); }

 private:
  std::span<const std::byte> from_;
};

void require_same(const std::string& wanted, const std::string& found) {
  if (wanted == found) return;
  throw_error(ErrorKind::data,
              "the saved state of the exchange has {} where {} is expected: it was saved with "
              "other slots, another codec or another number of ranks",
              found, wanted);
}

void require_same_rank(const StateOrigin& here, const StateOrigin& saved) {
  if (here.rank == saved.rank && here.ranks == saved.ranks) return;
  throw_error(
      ErrorKind::data,
      "the saved state of the exchange belongs to rank {} of {}, but this is rank {} of {}: "
      "each rank must load its own state",
      saved.rank, saved.ranks, here.rank, here.ranks);
}

// Calls f with everything to be saved, piece by piece.
template <class F>
void for_each_piece(const StatefulExchange& exchange, F f) {
  const auto number = [&f](std::uint64_t value) { f(std::as_bytes(std::span(&value, 1))); };
  const auto counted = [&](std::span<const std::byte> bytes) {
    number(bytes.size());
    f(bytes);
  };
  f(bytes_of(kMark));
  f(std::as_bytes(std::span(&exchange.here, 1)));
  number(exchange.tensors.size());
  for (const StatefulTensor& tensor : exchange.tensors) {
    counted(bytes_of(tensor.name));
    number(tensor.rows);
    number(tensor.columns);
    number(tensor.makes_step);
  }
  number(exchange.state.blocks.size() + exchange.state.texts.size());
  for (const StateBlock& block : exchange.state.blocks) {
    counted(bytes_of(block.name));
    counted(block.bytes);
  }
  for (const StateText& text : exchange.state.texts) {
    counted(bytes_of(text.name));
    counted(bytes_of(text.get()));
  }
}

// A parsed state, not yet compared with any exchange.
struct SavedState {
  int format = 4;
  std::optional<StateOrigin> origin;
  std::vector<StatefulTensor> tensors;  // from the fourth format on
  std::vector<std::pair<std::string, std::span<const std::byte>>> parts;

  [[nodiscard]] std::optional<std::span<const std::byte>> find(std::string_view name) const {
    const auto found = std::ranges::find(parts, name, [](const auto& part) { return part.first; });
    return found == parts.end() ? std::nullopt : std::optional(found->second);
  }
};

std::vector<StatefulTensor> read_tensors(Reader& reader) {
  const std::uint64_t count = reader.take_number();
  constexpr std::uint64_t kMostValues = std::uint64_t{1} << 40;
  std::vector<StatefulTensor> tensors;
  for (std::uint64_t t = 0; t < count; ++t) {  // a wrong count ends in the reader's Error
    StatefulTensor tensor{.name = reader.take_text()};
    tensor.rows = reader.take_number();
    tensor.columns = reader.take_number();
    tensor.makes_step = reader.take_number();
    if (tensor.rows == 0 || tensor.columns == 0 || tensor.rows > kMostValues / tensor.columns) {
      throw_error(ErrorKind::data, "the saved state of the exchange has a tensor of {} x {} values",
                  tensor.rows, tensor.columns);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

SavedState read_state(std::span<const std::byte> from) {
  const std::string_view mark(reinterpret_cast<const char*>(from.data()),
                              std::min(kMark.size(), from.size()));
  SavedState saved;
  saved.format = mark.size() == kMark.size() ? mark[kNumberAt] - '0' : 0;
  std::string wanted(kMark);
  wanted[kNumberAt] = static_cast<char>('0' + saved.format);
  if (mark != wanted || saved.format < 1 || saved.format > 4) {
    throw_error(ErrorKind::data, "these {} bytes are not a saved state of an exchange",
                from.size());
  }
  if (saved.format >= 3) {
    if (!is_intact(from)) {
      throw_error(ErrorKind::data,
                  "the saved state of the exchange is damaged or cut off: its {} bytes do not have "
                  "the checksum that they were saved with",
                  from.size());
    }
    from = from.first(from.size() - kSealBytes);
  }
  Reader reader(from.subspan(mark.size()));
  if (saved.format >= 2) {
    saved.origin.emplace();
    std::memcpy(&*saved.origin, reader.take(sizeof *saved.origin).data(), sizeof *saved.origin);
  }
  if (saved.format >= 4) saved.tensors = read_tensors(reader);
  const std::uint64_t parts = reader.take_number();
  for (std::uint64_t part = 0; part < parts && !reader.is_at_end(); ++part) {
    std::string name = reader.take_name();
    saved.parts.emplace_back(std::move(name), reader.take(reader.take_number()));
  }
  if (saved.parts.size() != parts) {
    throw_error(ErrorKind::data, "the saved state of the exchange is truncated");
  }
  if (!reader.is_at_end()) {
    throw_error(ErrorKind::data, "the saved state of the exchange has extra bytes at its end");
  }
  return saved;
}

void require_scale(const StateOrigin& origin) {
  if (origin.loss_scale > 0.0 && std::isfinite(origin.loss_scale)) return;
  throw_error(ErrorKind::data, "the saved state of the exchange has a loss scale of {}",
              origin.loss_scale);
}

void require_same_tensors(const std::vector<StatefulTensor>& here,
                          const std::vector<StatefulTensor>& saved) {
  const auto described = [](const StatefulTensor& tensor) {
    return fmt::format("'{}', {} x {}", tensor.name, tensor.rows, tensor.columns);
  };
  require_same(fmt::format("{} slots", here.size()), fmt::format("{} slots", saved.size()));
  for (std::size_t t = 0; t < here.size(); ++t) {
    require_same(described(here[t]), described(saved[t]));
  }
}

// ---- merging

// The offset of each tensor's numbers in a block; the last entry is the block's length.
std::vector<std::size_t> divided(std::span<const StatefulTensor> tensors, StateGrain grain,
                                 std::size_t numbers) {
  const auto steps = static_cast<std::size_t>(
      std::ranges::count(tensors, std::uint64_t{1}, &StatefulTensor::makes_step));
  std::vector<std::size_t> begins = {0};
  for (const StatefulTensor& tensor : tensors) {
    const std::size_t size = grain == StateGrain::value ? tensor.rows * tensor.columns
                             : tensor.makes_step == 0   ? 0
                             : grain == StateGrain::row ? tensor.rows
                                                        : numbers / steps;
    begins.push_back(begins.back() + size);
  }
  return begins;
}

// For each tensor here, the index of the saved tensor with the same name and shape, or nothing.
std::vector<std::optional<std::size_t>> matched(std::span<const StatefulTensor> here,
                                                std::span<const StatefulTensor> saved) {
  std::vector<bool> is_taken(saved.size());
  std::vector<std::optional<std::size_t>> matches;
  for (const StatefulTensor& tensor : here) {
    matches.emplace_back();
    for (std::size_t s = 0; s < saved.size() && !matches.back(); ++s) {
      if (is_taken[s] || saved[s].name != tensor.name || saved[s].rows != tensor.rows ||
          saved[s].columns != tensor.columns) {
        continue;
      }
      is_taken[s] = true;
      matches.back() = s;
    }
  }
  return matches;
}

// Adds `factor` times the saved numbers of a divided block to `sums`, tensor by tensor.
void add_tensors(const StateBlock& block, std::span<const StatefulTensor> here,
                 const SavedState& saved, double factor, std::vector<double>& sums) {
  const auto bytes = saved.find(block.name);
  if (!bytes) return;
  const std::size_t numbers = bytes->size() / sizeof(float);
  const std::vector<std::size_t> to = divided(here, block.grain, sums.size());
  const std::vector<std::size_t> from = divided(saved.tensors, block.grain, numbers);
  if (from.back() != numbers) {
    throw_error(ErrorKind::data,
                "the saved state of the exchange has {} numbers for {}; it must have {}", numbers,
                block.name, from.back());
  }
  const auto matches = matched(here, saved.tensors);
  for (std::size_t t = 0; t < here.size(); ++t) {
    if (!matches[t] || from[*matches[t] + 1] - from[*matches[t]] != to[t + 1] - to[t]) continue;
    for (std::size_t i = 0; i < to[t + 1] - to[t]; ++i) {
      float number = 0.0f;
      std::memcpy(&number, bytes->data() + (from[*matches[t]] + i) * sizeof(float), sizeof number);
      sums[to[t] + i] += factor * static_cast<double>(number);
    }
  }
}

// For each saved state, its weight in this rank's part of a block; the weight is 0 if this rank
// does not use that state.
std::vector<double> weights(const StateBlock& block, const StateOrigin& here,
                            const std::vector<SavedState>& states) {
  const std::size_t count = states.size();
  if (states.front().origin->ranks == here.ranks) return {1.0};  // this rank's own state
  std::vector<double> weights(count);
  double mine = 0.0;
  for (std::size_t r = 0; r < count; ++r) {
    weights[r] = r % here.ranks == here.rank ? 1.0 : 0.0;
    mine += weights[r];
  }
  if (block.merge == StateMerge::spread) {
    std::ranges::fill(weights, 1.0 / static_cast<double>(here.ranks));
  } else if (block.merge == StateMerge::mean) {
    if (mine == 0.0) std::ranges::fill(weights, mine = 1.0);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= all;
  }
  return weights;
}

void require_mergeable(const StateOrigin& here, const std::vector<SavedState>& states) {
  for (std::size_t r = 0; r < states.size(); ++r) {
    const SavedState& saved = states[r];
    if (saved.format < 4) {
      throw_error(
          ErrorKind::data,
          "the saved state of the exchange is from an earlier version and does not list its "
          "tensors: it fits only the same tensors and the same number of ranks");
    }
    require_scale(*saved.origin);
    const std::uint64_t of = saved.origin->ranks;
    const bool is_own = states.size() == 1 && of == here.ranks && saved.origin->rank == here.rank;
    const bool is_all = states.size() == of && saved.origin->rank == r;
    if (is_own || (is_all && of != here.ranks)) continue;
    throw_error(ErrorKind::data,
                "state {} of {} belongs to rank {} of {}, but this is rank {} of {}; allowed: this "
                "rank's own state, or the states of all ranks of another number of ranks, in order",
                r, states.size(), saved.origin->rank, of, here.rank, here.ranks);
  }
}

}  // namespace

std::size_t saved_bytes(const StatefulExchange& exchange) {
  std::size_t size = 0;
  for_each_piece(exchange, [&size](std::span<const std::byte> piece) { size += piece.size(); });
  return size + kSealBytes;
}

void save_state(const StatefulExchange& exchange, std::span<std::byte> to) {
  const std::size_t size = saved_bytes(exchange);
  if (to.size() != size) {
    throw_error(ErrorKind::usage, "the buffer has {} bytes, but the state has {} bytes", to.size(),
                size);
  }
  std::byte* at = to.data();
  for_each_piece(exchange, [&at](std::span<const std::byte> piece) {
    if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
    at += piece.size();
  });
  seal(to);
}

std::optional<StateOrigin> load_state(const StatefulExchange& exchange,
                                      std::span<const std::byte> from) {
  const SavedState saved = read_state(from);
  if (saved.origin) {
    require_same_rank(exchange.here, *saved.origin);
    require_scale(*saved.origin);
  }
  if (saved.format >= 4) require_same_tensors(exchange.tensors, saved.tensors);
  const StateList& state = exchange.state;
  const std::size_t parts = state.blocks.size() + state.texts.size();
  require_same(fmt::format("{} parts", parts), fmt::format("{} parts", saved.parts.size()));
  // Check everything before changing anything.
  for (std::size_t i = 0; i < parts; ++i) {
    const auto& [name, bytes] = saved.parts[i];
    if (i >= state.blocks.size()) {
      require_same(state.texts[i - state.blocks.size()].name, name);
      continue;
    }
    const StateBlock& block = state.blocks[i];
    require_same(block.name, name);
    require_same(fmt::format("{} of {} bytes", block.name, block.bytes.size()),
                 fmt::format("{} of {} bytes", name, bytes.size()));
  }
  for (std::size_t i = 0; i < parts; ++i) {
    const std::span<const std::byte> bytes = saved.parts[i].second;
    if (i >= state.blocks.size()) {
      state.texts[i - state.blocks.size()].set(text_of(bytes));
    } else if (!bytes.empty()) {
      std::memcpy(state.blocks[i].bytes.data(), bytes.data(), bytes.size());
    }
  }
  return saved.origin;
}

StateOrigin merge_states(const StatefulExchange& exchange,
                         std::span<const std::span<const std::byte>> from) {
  if (from.empty()) throw_error(ErrorKind::usage, "no state to continue from");
  std::vector<SavedState> states;
  for (const std::span<const std::byte> each : from) states.push_back(read_state(each));
  require_mergeable(exchange.here, states);
  std::vector<std::pair<const StateBlock*, std::vector<float>>> divided_blocks;
  for (const StateBlock& block : exchange.state.blocks) {
    if (block.grain == StateGrain::none) continue;
    DP_ASSERT(block.type == StateType::f32,
              "the state {} is divided by tensors, so it must consist of floats", block.name);
    std::vector<double> sums(block.bytes.size() / sizeof(float));
    const std::vector<double> weight = weights(block, exchange.here, states);
    for (std::size_t r = 0; r < states.size(); ++r) {
      if (weight[r] > 0.0) add_tensors(block, exchange.tensors, states[r], weight[r], sums);
    }
    divided_blocks.emplace_back(&block, std::vector<float>(sums.begin(), sums.end()));
  }
  for (const auto& [block, values] : divided_blocks) {
    if (!values.empty()) std::memcpy(block->bytes.data(), values.data(), block->bytes.size());
  }
  for (const StateBlock& block : exchange.state.blocks) {
    if (block.grain != StateGrain::none || block.share != StateShare::replicated) continue;
    const auto bytes = states[0].find(block.name);
    if (bytes && bytes->size() == block.bytes.size() && !bytes->empty()) {
      std::memcpy(block.bytes.data(), bytes->data(), bytes->size());
    }
  }
  for (const StateText& text : exchange.state.texts) {
    if (const auto bytes = states[0].find(text.name);
        bytes && text.share == StateShare::replicated) {
      text.set(text_of(*bytes));
    }
  }
  return *states[0].origin;
}

}  // namespace dp
