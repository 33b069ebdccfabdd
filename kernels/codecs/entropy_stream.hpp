// Writes and reads the symbols and plain bits of the entropy coder (entropy_coder.hpp has the
// format).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {

inline constexpr std::uint32_t kLeastState = 1u << 16;
inline constexpr std::uint32_t kMostLevel = 126;
// Masks for the parts of the head byte.
inline constexpr std::uint32_t kHeld = 31, kHasOneState = 32, kIsCoded = 64, kHasLanes = 128;

// Encoder and Decoder each have a fast path, Fast, for the usual code: one or two symbols, and
// plain bits. Fast does not check for room; the caller does. Fast has no branches, because a
// processor cannot predict whether a state exchanges a word. Fast holds copies of the members that
// change, so that the compiler keeps them in registers; go_on_from() copies them back.
#define DP_FAST [[gnu::always_inline]] inline

// All bits set if the condition holds, else none.
DP_FAST std::uint32_t mask_if(bool condition) { return condition ? ~0u : 0u; }

// The states, beginning with the one whose turn it is.
template <std::size_t kStates>
using States = std::array<std::uint32_t, kStates>;

// Gives the first state its new value and passes the turn to the other one.
template <std::size_t kStates>
DP_FAST void take_turn(States<kStates>& states, std::uint32_t value) {
  if constexpr (kStates > 1) {
    states.front() = std::exchange(states.back(), value);
  } else {
    states.front() = value;
  }
}

// Writes from one end of its room to the other: downwards from the end, or upwards from the
// beginning.
template <bool kDown>
class RoomWriter {
 public:
  explicit RoomWriter(std::span<std::byte> room)
      : begin_(room.data()), end_(room.data() + room.size()), at_(kDown ? end_ : begin_) {}

  template <class Word>
  void put(Word word) {
    if (room() < sizeof word) {
      is_full_ = true;
      return;
    }
    if constexpr (kDown) at_ -= sizeof word;
    std::memcpy(at_, &word, sizeof word);
    if constexpr (!kDown) at_ += sizeof word;
  }
  [[nodiscard]] std::size_t room() const {
    return static_cast<std::size_t>(kDown ? at_ - begin_ : end_ - at_);
  }
  [[nodiscard]] bool is_full() const { return is_full_; }
  void give_up() { is_full_ = true; }
  [[nodiscard]] std::span<const std::byte> written() const {
    return kDown ? std::span<const std::byte>(at_, end_) : std::span<const std::byte>(begin_, at_);
  }
  // For callers that write without checking for room.
  [[nodiscard]] std::byte* at() const { return at_; }
  void move_to(std::byte* at) { at_ = at; }

 private:
  std::byte *begin_, *end_, *at_;
  bool is_full_ = false;
};

// Encodes with one state, or with two that alternate.
template <std::size_t kStates>
class Encoder {
 public:
  // The fast path. Use it only while has_room() is true.
  struct Fast {
    States<kStates> states;
    std::uint32_t held;
    std::uint64_t last;
    std::byte *words, *plain;

    DP_FAST void put(const Symbol& to) {
      std::uint32_t state = states.front();
      const auto word = static_cast<std::uint16_t>(state);
      std::memcpy(words - sizeof word, &word, sizeof word);
      const std::uint32_t gives = mask_if(state >= to.limit);
      words -= gives & sizeof word;
      state >>= gives & 16;
      take_turn(states, to.coded(state));
    }
    DP_FAST void put_plain(std::uint32_t bits, unsigned count) {
      last = last << count | bits;
      held += count;
      const auto word = static_cast<std::uint32_t>(last >> (held & 31));
      std::memcpy(plain, &word, sizeof word);
      plain += (held >> 5) * sizeof word;
      held &= 31;
    }
  };

  Encoder(std::span<std::byte> words, std::span<std::byte> plain) : words_(words), plain_(plain) {
    states_.fill(kLeastState);
  }

  void put(const Table& table, std::size_t symbol) {
    const Symbol& to = table.symbols[symbol];
    std::uint32_t state = states_.front();
    if (state >= to.limit) {
      words_.put(static_cast<std::uint16_t>(state));
      state >>= 16;
    }
    take_turn(states_, to.coded(state));
  }
  // Writes the lowest `count` bits of `bits`. Requires count < 32 and bits < 2^count.
  void put_plain(std::uint32_t bits, unsigned count) {
    last_ = last_ << count | bits;
    held_ += count;
    if (held_ >= 32) {
      held_ -= 32;
      plain_.put(static_cast<std::uint32_t>(last_ >> held_));
    }
  }
  // Whether there is room for this many codes.
  [[nodiscard]] bool has_room(std::size_t codes) const {
    return words_.room() >= codes * 2 * sizeof(std::uint16_t) &&
           plain_.room() >= codes * sizeof(std::uint32_t);
  }
  [[nodiscard]] Fast fast() const { return {states_, held_, last_, words_.at(), plain_.at()}; }
  void go_on_from(const Fast& fast) {
    states_ = fast.states;
    held_ = fast.held;
    last_ = fast.last;
    words_.move_to(fast.words);
    plain_.move_to(fast.plain);
  }
  [[nodiscard]] bool is_full() const { return words_.is_full() || plain_.is_full(); }
  // Makes is_full() true.
  void give_up() { words_.give_up(); }

  // Writes everything in the order of the wire, unless it is longer than `room`. `out` may be the
  // memory into which the plain bits were written. `lanes` holds the states of lanes, if there are
  // any.
  std::optional<std::size_t> finish(std::byte* out, std::size_t room,
                                    std::span<const std::uint32_t> lanes = {}) {
    const auto plain = plain_.written(), words = words_.written();
    const auto head = static_cast<std::uint8_t>(kIsCoded | (kStates == 1 ? kHasOneState : 0u) |
                                                (lanes.empty() ? 0u : kHasLanes) | held_);
    const auto first = static_cast<std::uint32_t>(last_ & ((std::uint64_t{1} << held_) - 1));
    const std::size_t bytes_of_first = (held_ + 7) / 8;
    const std::size_t begin_of_states = sizeof head + lanes.size_bytes();
    const std::size_t bytes =
        begin_of_states + sizeof states_ + words.size() + plain.size() + bytes_of_first;
    if (is_full() || bytes > room) return std::nullopt;
    std::byte* const begin_of_words = out + begin_of_states + sizeof states_;
    std::byte* const begin_of_plain = begin_of_words + words.size();
    std::memmove(begin_of_plain, plain.data(), plain.size());
    std::memcpy(begin_of_plain + plain.size(), &first, bytes_of_first);
    std::memcpy(out, &head, sizeof head);
    std::memcpy(out + sizeof head, lanes.data(), lanes.size_bytes());
    std::memcpy(out + begin_of_states, states_.data(), sizeof states_);
    std::memcpy(begin_of_words, words.data(), words.size());
    return bytes;
  }

 private:
  States<kStates> states_;  // the decoder begins with the last one
  std::uint64_t last_ = 0;  // its held_ lowest bits are not yet written
  std::uint32_t held_ = 0;  // less than 32 between calls
  RoomWriter<true> words_;
  RoomWriter<false> plain_;
};

template <std::size_t kStates>
class Decoder {
 public:
  // The fast path. Use it only while has_room() is true.
  struct Fast {
    const std::byte *words, *plain;
    States<kStates> states;
    std::uint64_t bits;
    unsigned held;

    DP_FAST std::uint32_t get(const Table& table) {
      const std::uint32_t place = states.front() & (kTableSize - 1);
      const Table::Found found = table.at(place);
      const std::uint32_t state = decoded(found, place, states.front());
      std::uint16_t word = 0;
      std::memcpy(&word, words, sizeof word);
      const bool takes = state < kLeastState;
      words += takes ? sizeof word : 0;
      const std::uint32_t longer = state << 16 | word;
      take_turn(states, __builtin_expect_with_probability(takes, 1, 0.5) ? longer : state);
      return found.symbol;
    }
    DP_FAST std::uint32_t get_plain(unsigned count) {
      std::uint32_t word = 0;
      std::memcpy(&word, plain - sizeof word, sizeof word);
      // The word is used only if its bits are needed. If they are not needed, these bytes may
      // belong to words[].
      const std::uint32_t takes = mask_if(held < count);
      plain -= takes & sizeof word;
      bits |= std::uint64_t{word & takes} << (held & 31);
      held += takes & 32;
      const auto all = static_cast<std::uint32_t>(bits) & ((1u << count) - 1);
      bits >>= count;
      held -= count;
      return all;
    }
  };

  // `in` is the input after the head byte. If `in` is too short for the states and the first plain
  // bits, has_failed() returns true.
  Decoder(std::uint32_t head, std::span<const std::byte> in)
      : next_(in.data()), plain_(in.data() + in.size()), held_(head & kHeld) {
    const std::size_t bytes_of_first = (held_ + 7) / 8;
    has_failed_ = in.size() < sizeof states_ + bytes_of_first;
    if (has_failed_) return;
    plain_ -= bytes_of_first;
    std::memcpy(&bits_, plain_, bytes_of_first);
    has_failed_ = bits_ >> held_ != 0;
    std::memcpy(states_.data(), next_, sizeof states_);
    next_ += sizeof states_;
    for (const std::uint32_t state : states_) has_failed_ |= state < kLeastState;
    std::swap(states_.front(), states_.back());
  }

  std::uint32_t get(const Table& table) {
    const std::uint32_t place = states_.front() & (kTableSize - 1);
    const Table::Found found = table.at(place);
    std::uint32_t state = decoded(found, place, states_.front());
    if (state < kLeastState) {
      std::uint16_t word = 0;
      if (has(sizeof word)) {
        std::memcpy(&word, next_, sizeof word);
        next_ += sizeof word;
      }
      state = state << 16 | word;
    }
    take_turn(states_, state);
    return found.symbol;
  }
  std::uint32_t get_plain(unsigned count) {
    if (held_ < count) {
      std::uint32_t word = 0;
      if (has(sizeof word)) {
        plain_ -= sizeof word;
        std::memcpy(&word, plain_, sizeof word);
      }
      bits_ |= std::uint64_t{word} << held_;
      held_ += 32;
    }
    const auto bits = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << count) - 1));
    bits_ >>= count;
    held_ -= count;
    return bits;
  }
  // Calls get(words), which reads at most kBytes at `words` and advances the pointer past the bytes
  // that it used. Near the end of the input, get() works on a copy of the remaining bytes, padded
  // with zeros.
  template <std::size_t kBytes, class Get>
  [[gnu::always_inline]] auto get_words(Get get) {
    const auto left = static_cast<std::size_t>(plain_ - next_);
    std::array<std::byte, kBytes> copy;
    const std::byte* from = next_;
    if (left < kBytes) [[unlikely]] {
      copy.fill(std::byte{0});
      std::memcpy(copy.data(), next_, left);
      from = copy.data();
    }
    const std::byte* at = from;
    const auto got = get(at);
    const auto taken = static_cast<std::size_t>(at - from);
    has_failed_ |= taken > left;
    next_ += std::min(taken, left);
    return got;
  }
  [[nodiscard]] Fast fast() const { return {next_, plain_, states_, bits_, held_}; }
  // Whether there is input for one more code.
  [[nodiscard]] DP_FAST bool has_room(const Fast& fast) const {
    return static_cast<std::size_t>(fast.plain - fast.words) >=
           2 * sizeof(std::uint16_t) + sizeof(std::uint32_t);
  }
  void go_on_from(const Fast& fast) {
    next_ = fast.words;
    plain_ = fast.plain;
    states_ = fast.states;
    bits_ = fast.bits;
    held_ = fast.held;
  }
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  // Whether all input was read and the states are back at their initial values.
  [[nodiscard]] bool is_at_end() const {
    return !has_failed_ && next_ == plain_ && held_ == 0 && states_.front() == kLeastState &&
           states_.back() == kLeastState;
  }

 private:
  // Returns the state that the encoder had before this symbol. If the encoder wrote a word at this
  // symbol, the result lacks the word's 16 bits.
  DP_FAST static std::uint32_t decoded(const Table::Found& found, std::uint32_t place,
                                       std::uint32_t state) {
    return found.share * (state >> kTableBits) + place - found.start;
  }

  // Returns whether this many bytes are left. If not, sets has_failed_.
  bool has(std::size_t bytes) {
    const bool is_there = static_cast<std::size_t>(plain_ - next_) >= bytes;
    has_failed_ |= !is_there;
    return is_there;
  }

  const std::byte *next_, *plain_;  // the next word, and the end of the next plain bits
  States<kStates> states_{};
  std::uint64_t bits_ = 0;  // held_ plain bits, taken from the lowest on
  unsigned held_;
  bool has_failed_;
};

// The value of a code: its magnitude is level + 1 steps, and `sign` is 1 if it is negative.
DP_FAST float value_of(std::uint32_t level, std::uint32_t sign, float step) {
  const auto magnitude = static_cast<float>(static_cast<std::int32_t>(level) + 1) * step;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) ^ sign << 31);
}

#undef DP_FAST

}  // namespace dp::entropy
