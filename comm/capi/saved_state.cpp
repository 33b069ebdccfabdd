#include "comm/capi/saved_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/seal.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::string_view kMark = "dptrain_comm state 3\n", kSecondMark = "dptrain_comm state 2\n",
                           kFirstMark = "dptrain_comm state 1\n";
static_assert(kMark.size() == kSecondMark.size() && kMark.size() == kFirstMark.size());
static_assert(sizeof(StateOrigin) == 24);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}

  std::span<const std::byte> take(std::uint64_t size) {
    if (size > from_.size()) {
      throw_error(ErrorKind::data, "the saved state of the exchange ends too early");
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
  // A name of a part, in this library's alphabet.
  std::string take_name() {
    const std::string name = take_text();
    constexpr std::size_t kMost = 100;
    if (name.size() > kMost ||
        std::ranges::any_of(name, [](char c) { return c < ' ' || c > '~'; })) {
      throw_error(ErrorKind::data,
                  "the saved state of the exchange is damaged: a part's name has {} bytes that are "
                  "no name; allowed: what this rank has saved",
                  name.size());
    }
    return name;
  }
  std::string take_text() {
    const std::span<const std::byte> taken = take(take_number());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  [[nodiscard]] bool is_at_end() const { return from_.empty(); }

 private:
  std::span<const std::byte> from_;
};

void require_same(const std::string& wanted, const std::string& found) {
  if (wanted == found) return;
  throw_error(ErrorKind::data,
              "the saved state of the exchange has {} where {} is expected: it is of other slots, "
              "another codec or another number of ranks",
              found, wanted);
}

void require_same_rank(const StateOrigin& here, const StateOrigin& saved) {
  if (here.rank == saved.rank && here.ranks == saved.ranks) return;
  throw_error(
      ErrorKind::data,
      "the saved state of the exchange is that of rank {} of {}, and this is rank {} of {}: "
      "each rank loads the state that it has saved; with another number of ranks, none does",
      saved.rank, saved.ranks, here.rank, here.ranks);
}

// Calls f with all that is saved, piece by piece.
template <class F>
void for_each_piece(const StateList& state, const StateOrigin& origin, F f) {
  const auto number = [&f](std::uint64_t value) { f(std::as_bytes(std::span(&value, 1))); };
  const auto counted = [&](std::span<const std::byte> bytes) {
    number(bytes.size());
    f(bytes);
  };
  f(bytes_of(kMark));
  f(std::as_bytes(std::span(&origin, 1)));
  number(state.blocks.size() + state.texts.size());
  for (const StateBlock& block : state.blocks) {
    counted(bytes_of(block.name));
    counted(block.bytes);
  }
  for (const StateText& text : state.texts) {
    counted(bytes_of(text.name));
    counted(bytes_of(text.get()));
  }
}

}  // namespace

std::size_t saved_bytes(const StateList& state) {
  std::size_t size = 0;
  for_each_piece(state, {}, [&size](std::span<const std::byte> piece) { size += piece.size(); });
  return size + kSealBytes;
}

void save_state(const StateList& state, const StateOrigin& origin, std::span<std::byte> to) {
  const std::size_t size = saved_bytes(state);
  if (to.size() != size) {
    throw_error(ErrorKind::usage, "{} bytes for a state of {} bytes", to.size(), size);
  }
  std::byte* at = to.data();
  for_each_piece(state, origin, [&at](std::span<const std::byte> piece) {
    if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
    at += piece.size();
  });
  seal(to);
}

std::optional<StateOrigin> load_state(const StateList& state, const StateOrigin& here,
                                      std::span<const std::byte> from) {
  const std::string_view mark(reinterpret_cast<const char*>(from.data()),
                              std::min(kMark.size(), from.size()));
  if (mark != kMark && mark != kSecondMark && mark != kFirstMark) {
    throw_error(ErrorKind::data, "these {} bytes are no saved state of an exchange", from.size());
  }
  if (mark == kMark) {
    if (!is_intact(from)) {
      throw_error(ErrorKind::data,
                  "the saved state of the exchange is damaged or cut off: its {} bytes do not have "
                  "the checksum that they were saved with",
                  from.size());
    }
    from = from.first(from.size() - kSealBytes);
  }
  Reader reader(from.subspan(mark.size()));
  std::optional<StateOrigin> origin;
  if (mark != kFirstMark) {
    origin.emplace();
    std::memcpy(&*origin, reader.take(sizeof *origin).data(), sizeof *origin);
    require_same_rank(here, *origin);
    if (!(origin->loss_scale > 0.0) || !std::isfinite(origin->loss_scale)) {
      throw_error(ErrorKind::data, "the saved state of the exchange has a loss scale of {}",
                  origin->loss_scale);
    }
  }
  const std::size_t parts = state.blocks.size() + state.texts.size();
  require_same(fmt::format("{} parts", parts), fmt::format("{} parts", reader.take_number()));
  // Everything is looked at before anything is changed.
  std::vector<std::span<const std::byte>> bytes;
  for (const StateBlock& block : state.blocks) {
    require_same(block.name, reader.take_name());
    bytes.push_back(reader.take(reader.take_number()));
    require_same(fmt::format("{} of {} bytes", block.name, block.bytes.size()),
                 fmt::format("{} of {} bytes", block.name, bytes.back().size()));
  }
  std::vector<std::string> texts;
  for (const StateText& text : state.texts) {
    require_same(text.name, reader.take_name());
    texts.push_back(reader.take_text());
  }
  if (!reader.is_at_end()) {
    throw_error(ErrorKind::data, "the saved state of the exchange goes on behind its end");
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!bytes[i].empty()) {
      std::memcpy(state.blocks[i].bytes.data(), bytes[i].data(), bytes[i].size());
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) state.texts[i].set(texts[i]);
  return origin;
}

}  // namespace dp
