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

// Writes downwards from the end of `room`, and stops at its begin.
class DownWriter {
 public:
  explicit DownWriter(std::span<std::byte> room)
      : begin_(room.data()), end_(room.data() + room.size()), at_(end_) {}

  template <class Word>
  void put(Word word) {
    if (static_cast<std::size_t>(at_ - begin_) < sizeof word) {
      is_full_ = true;
      return;
    }
    at_ -= sizeof word;
    std::memcpy(at_, &word, sizeof word);
  }
  [[nodiscard]] bool is_full() const { return is_full_; }
  [[nodiscard]] std::span<const std::byte> written() const { return {at_, end_}; }

 private:
  std::byte *begin_, *end_, *at_;
  bool is_full_ = false;
};

class Encoder {
 public:
  Encoder(std::span<std::byte> words, std::span<std::byte> plain) : words_(words), plain_(plain) {}

  void put(const Table& table, std::size_t symbol) {
    const auto [start, share] = table.symbols[symbol];
    std::uint32_t& state = states_[turn_ ^= 1];
    if (state >= std::uint64_t{share} << (32 - kTableBits)) {
      words_.put(static_cast<std::uint16_t>(state));
      state >>= 16;
    }
    state = (state / share << kTableBits) + state % share + start;
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
  [[nodiscard]] bool is_full() const { return words_.is_full() || plain_.is_full(); }

  // Everything, in the order of the wire; nothing if it is longer than `room`.
  std::optional<std::size_t> finish(std::byte* out, std::size_t room) {
    const auto plain = plain_.written(), words = words_.written();
    std::array<std::uint32_t, kStates> states = states_;
    if (turn_ == 0) std::swap(states[0], states[1]);  // the decoder begins with the last one
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
  std::array<std::uint32_t, kStates> states_{kLeastState, kLeastState};
  std::size_t turn_ = 0;
  std::uint64_t last_ = 0;  // its held_ lowest bits are not yet written
  std::uint32_t held_ = 0;  // less than 32 between calls
  DownWriter words_, plain_;
};

class Decoder {
 public:
  // Ends with has_failed() if the parts do not fit into `in`.
  explicit Decoder(std::span<const std::byte> in) : next_(in.data()), end_(in.data() + in.size()) {
    std::uint32_t head = 0, first = 0;
    read(head);
    read(first);
    const std::size_t plain = std::size_t{head >> 8} * 4;
    held_ = head & 31;
    bits_ = first;
    has_failed_ |= (head & 0xE0u) != 0 || (std::uint64_t{first} >> held_) != 0 ||
                   static_cast<std::size_t>(end_ - next_) < plain + sizeof states_;
    if (has_failed_) return;
    plain_ = next_;
    plain_end_ = next_ += plain;
    for (std::uint32_t& state : states_) {
      read(state);
      has_failed_ |= state < kLeastState;
    }
  }

  std::size_t get(const Table& table) {
    std::uint32_t& state = states_[turn_ ^= 1];
    const std::uint32_t place = table.places[state & (kTableSize - 1)];
    state = (place >> 8 & 0xFFFu) * (state >> kTableBits) + (place >> 20);
    if (state < kLeastState) {
      std::uint16_t word = 0;
      read(word);
      state = state << 16 | word;
    }
    return place & 0xFFu;
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
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  // Whether exactly what was written was read.
  [[nodiscard]] bool is_at_end() const {
    return !has_failed_ && next_ == end_ && plain_ == plain_end_ && held_ == 0 &&
           states_[0] == kLeastState && states_[1] == kLeastState;
  }

 private:
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
  std::array<std::uint32_t, kStates> states_{};
  std::size_t turn_ = 0;
  std::uint64_t bits_ = 0;
  unsigned held_ = 0;
  bool has_failed_ = false;
};

}  // namespace dp::entropy
