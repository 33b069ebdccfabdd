// The symbols and plain bits of the entropy coder as bytes (entropy_coder.hpp has the format).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "kernels/codecs/entropy_tables.hpp"

namespace dp::entropy {

inline constexpr std::uint32_t kLeastState = 1u << 16;
inline constexpr std::size_t kStates = 2;

// Both sides have a fast way for the usual code, which has one or two symbols and plain bits. There
// nobody looks whether there is room, and nothing jumps: whether a state exchanges a word can't be
// foretold. It works on a copy of what moves, which then stays in registers.
#define DP_FAST [[gnu::always_inline]] inline

// All bits set, or none.
DP_FAST std::uint32_t mask_if(bool condition) { return condition ? ~0u : 0u; }

// Writes downwards from the end of `room`, and stops at its begin.
class DownWriter {
 public:
  explicit DownWriter(std::span<std::byte> room)
      : begin_(room.data()), end_(room.data() + room.size()), at_(end_) {}

  template <class Word>
  void put(Word word) {
    if (room() < sizeof word) {
      is_full_ = true;
      return;
    }
    at_ -= sizeof word;
    std::memcpy(at_, &word, sizeof word);
  }
  [[nodiscard]] std::size_t room() const { return static_cast<std::size_t>(at_ - begin_); }
  [[nodiscard]] bool is_full() const { return is_full_; }
  [[nodiscard]] std::span<const std::byte> written() const { return {at_, end_}; }
  // For those who write without looking for room.
  [[nodiscard]] std::byte* at() const { return at_; }
  void move_to(std::byte* at) { at_ = at; }

 private:
  std::byte *begin_, *end_, *at_;
  bool is_full_ = false;
};

class Encoder {
 public:
  // The fast way: for codes while has_room().
  struct Fast {
    std::uint32_t next_state, last_state;
    std::uint32_t held;
    std::uint64_t last;
    std::byte *words, *plain;

    DP_FAST void put(const Symbol& to) {
      std::uint32_t state = next_state;
      const auto word = static_cast<std::uint16_t>(state);
      std::memcpy(words - sizeof word, &word, sizeof word);
      const std::uint32_t gives = mask_if(state >= to.limit);
      words -= gives & sizeof word;
      state >>= gives & 16;
      next_state = std::exchange(last_state, to.coded(state));
    }
    DP_FAST void put_plain(std::uint32_t bits, unsigned count) {
      last = last << count | bits;
      held += count;
      const auto word = static_cast<std::uint32_t>(last >> (held & 31));
      std::memcpy(plain - sizeof word, &word, sizeof word);
      plain -= (held >> 5) * sizeof word;
      held &= 31;
    }
  };

  Encoder(std::span<std::byte> words, std::span<std::byte> plain) : words_(words), plain_(plain) {}

  void put(const Table& table, std::size_t symbol) {
    const Symbol& to = table.symbols[symbol];
    std::uint32_t state = next_state_;
    if (state >= to.limit) {
      words_.put(static_cast<std::uint16_t>(state));
      state >>= 16;
    }
    next_state_ = std::exchange(last_state_, to.coded(state));
  }
  // count < 32, bits < 2^count.
  void put_plain(std::uint32_t bits, unsigned count) {
    last_ = last_ << count | bits;
    held_ += count;
    if (held_ >= 32) {
      held_ -= 32;
      plain_.put(static_cast<std::uint32_t>(last_ >> held_));
    }
  }
  // For so many codes.
  [[nodiscard]] bool has_room(std::size_t codes) const {
    return words_.room() >= codes * 2 * sizeof(std::uint16_t) &&
           plain_.room() >= codes * sizeof(std::uint32_t);
  }
  [[nodiscard]] Fast fast() const {
    return {next_state_, last_state_, held_, last_, words_.at(), plain_.at()};
  }
  void go_on_from(const Fast& fast) {
    next_state_ = fast.next_state;
    last_state_ = fast.last_state;
    held_ = fast.held;
    last_ = fast.last;
    words_.move_to(fast.words);
    plain_.move_to(fast.plain);
  }
  [[nodiscard]] bool is_full() const { return words_.is_full() || plain_.is_full(); }

  // Everything, in the order of the wire; nothing if it is longer than `room`.
  std::optional<std::size_t> finish(std::byte* out, std::size_t room) {
    const auto plain = plain_.written(), words = words_.written();
    const std::array<std::uint32_t, kStates> states{next_state_, last_state_};
    const std::uint32_t head = held_ | static_cast<std::uint32_t>(plain.size() / 4) << 8;
    const auto first = static_cast<std::uint32_t>(last_ & ((std::uint64_t{1} << held_) - 1));
    const std::size_t bytes =
        sizeof head + sizeof first + plain.size() + sizeof states + words.size();
    if (is_full() || bytes > room) return std::nullopt;
    const auto write = [&](const void* from, std::size_t size) {
      std::memmove(out, from, size);
      out += size;
    };
    write(&head, sizeof head);
    write(&first, sizeof first);
    write(plain.data(), plain.size());
    write(states.data(), sizeof states);
    write(words.data(), words.size());
    return bytes;
  }

 private:
  // The one whose turn it is, and the other; the decoder begins with the latter.
  std::uint32_t next_state_ = kLeastState, last_state_ = kLeastState;
  std::uint64_t last_ = 0;  // its held_ lowest bits are not yet written
  std::uint32_t held_ = 0;  // less than 32 between calls
  DownWriter words_, plain_;
};

class Decoder {
 public:
  // The fast way: for codes while has_room().
  struct Fast {
    const std::byte *words, *plain;
    std::uint32_t next_state, last_state;
    std::uint64_t bits;
    unsigned held;

    DP_FAST std::uint32_t get(const Table& table) {
      const std::uint32_t place = next_state & (kTableSize - 1);
      const Table::Found found = table.at(place);
      const std::uint32_t state = decoded(found, place, next_state);
      std::uint16_t word = 0;
      std::memcpy(&word, words, sizeof word);
      const bool takes = state < kLeastState;
      words += takes ? sizeof word : 0;
      const std::uint32_t longer = state << 16 | word;
      next_state = std::exchange(last_state,
                                 __builtin_expect_with_probability(takes, 1, 0.5) ? longer : state);
      return found.symbol;
    }
    DP_FAST std::uint32_t get_plain(unsigned count) {
      std::uint32_t word = 0;
      std::memcpy(&word, plain, sizeof word);
      const std::uint32_t takes = mask_if(held < 32);
      plain += takes & sizeof word;
      bits |= std::uint64_t{word & takes} << (held & 31);
      held += takes & 32;
      const auto all = static_cast<std::uint32_t>(bits) & ((1u << count) - 1);
      bits >>= count;
      held -= count;
      return all;
    }
  };

  // Ends with has_failed() if the parts do not fit into `in`.
  explicit Decoder(std::span<const std::byte> in) : next_(in.data()), end_(in.data() + in.size()) {
    std::uint32_t head = 0, first = 0;
    read(head);
    read(first);
    const std::size_t plain = std::size_t{head >> 8} * 4;
    held_ = head & 31;
    bits_ = first;
    has_failed_ |= (head & 0xE0u) != 0 || (std::uint64_t{first} >> held_) != 0 ||
                   static_cast<std::size_t>(end_ - next_) < plain + kStates * sizeof(std::uint32_t);
    if (has_failed_) return;
    plain_ = next_;
    plain_end_ = next_ += plain;
    for (std::uint32_t* state : {&last_state_, &next_state_}) {
      read(*state);
      has_failed_ |= *state < kLeastState;
    }
  }

  std::uint32_t get(const Table& table) {
    const std::uint32_t place = next_state_ & (kTableSize - 1);
    const Table::Found found = table.at(place);
    std::uint32_t state = decoded(found, place, next_state_);
    if (state < kLeastState) {
      std::uint16_t word = 0;
      read(word);
      state = state << 16 | word;
    }
    next_state_ = std::exchange(last_state_, state);
    return found.symbol;
  }
  std::uint32_t get_plain(unsigned count) {
    if (held_ < count) {
      std::uint32_t word = 0;
      if (plain_ == plain_end_) {
        has_failed_ = true;
      } else {
        std::memcpy(&word, plain_, sizeof word);
        plain_ += sizeof word;
      }
      bits_ |= std::uint64_t{word} << held_;
      held_ += 32;
    }
    const auto bits = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << count) - 1));
    bits_ >>= count;
    held_ -= count;
    return bits;
  }
  [[nodiscard]] Fast fast() const {
    return {next_, plain_, next_state_, last_state_, bits_, held_};
  }
  // For one code more.
  [[nodiscard]] DP_FAST bool has_room(const Fast& fast) const {
    return static_cast<std::size_t>(end_ - fast.words) >= 2 * sizeof(std::uint16_t) &&
           static_cast<std::size_t>(plain_end_ - fast.plain) >= sizeof(std::uint32_t);
  }
  void go_on_from(const Fast& fast) {
    next_ = fast.words;
    plain_ = fast.plain;
    next_state_ = fast.next_state;
    last_state_ = fast.last_state;
    bits_ = fast.bits;
    held_ = fast.held;
  }
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  // Whether exactly what was written was read.
  [[nodiscard]] bool is_at_end() const {
    return !has_failed_ && next_ == end_ && plain_ == plain_end_ && held_ == 0 &&
           next_state_ == kLeastState && last_state_ == kLeastState;
  }

 private:
  // What the state was before this symbol was coded, if no word was given.
  DP_FAST static std::uint32_t decoded(const Table::Found& found, std::uint32_t place,
                                       std::uint32_t state) {
    return found.share * (state >> kTableBits) + place - found.start;
  }

  template <class Word>
  void read(Word& word) {
    if (static_cast<std::size_t>(end_ - next_) < sizeof word) {
      has_failed_ = true;
      return;
    }
    std::memcpy(&word, next_, sizeof word);
    next_ += sizeof word;
  }

  const std::byte *next_, *end_;
  const std::byte *plain_ = nullptr, *plain_end_ = nullptr;
  std::uint32_t next_state_ = 0, last_state_ = 0;  // the one whose turn it is, and the other
  std::uint64_t bits_ = 0;                         // held_ of them, the lowest first
  unsigned held_ = 0;
  bool has_failed_ = false;
};

#undef DP_FAST

}  // namespace dp::entropy
