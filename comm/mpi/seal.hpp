// The seal of a message: a CRC-32C of all its other bytes, in its last four bytes, little-endian.
//
// Links, network cards, switches and memory flip bits, and TCP's 16-bit checksum misses one damaged
// segment in 65,536. A wrong value that reaches all ranks would change the result without making
// the replicas differ. Therefore every message has a seal. The receiver checks the seal before it
// decodes, obeys or forwards the message. A damaged message throws Error(communication), which
// names its sender and its receiver.
//
// Messages without a seal: MPI's own (envelopes, barriers, start and end), and messages whose
// content is not read (the streams of link_probe.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/base/crc32c.hpp"

namespace dp {

inline constexpr std::size_t kSealBytes = sizeof(std::uint32_t);

// Writes the seal into the last bytes of the message.
inline void seal(std::span<std::byte> message) {
  const std::size_t content = message.size() - kSealBytes;
  const std::uint32_t crc = crc32c(message.first(content));
  std::memcpy(message.data() + content, &crc, sizeof crc);
}

// Whether the message matches its seal. False if it is too short to have one.
[[nodiscard]] inline bool is_intact(std::span<const std::byte> message) {
  if (message.size() < kSealBytes) return false;
  const std::size_t content = message.size() - kSealBytes;
  std::uint32_t crc;
  std::memcpy(&crc, message.data() + content, sizeof crc);
  return crc == crc32c(message.first(content));
}

// A message of one value.
template <class T>
requires std::is_trivially_copyable_v<T>
class Sealed {
 public:
  static constexpr std::size_t kBytes = sizeof(T) + kSealBytes;

  Sealed() = default;  // for a message that will be received
  explicit Sealed(const T& value) {
    std::memcpy(bytes_.data(), &value, sizeof value);
    seal(bytes_);
  }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool is_intact() const { return dp::is_intact(bytes_); }
  [[nodiscard]] T value() const {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

 private:
  std::array<std::byte, kBytes> bytes_ = {};
};

// One end of a message. The host may be unknown.
struct MessageEnd {
  int rank = 0;
  std::string_view host = {};
};
// `what` names the message: "a message of bucket 3 in step 17".
[[noreturn]] void throw_damaged(std::string_view what, const MessageEnd& from,
                                const MessageEnd& to);

}  // namespace dp
