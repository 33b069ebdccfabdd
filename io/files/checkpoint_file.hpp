// The file of one rank's part of a checkpoint (a *shard*): named entries of bytes.
//
// All numbers are little endian. Every byte of the file is covered by a hash (xxh3, 64 bits):
//     8 bytes  "dpckpt1\n"
//     u64      size of the file
//     u64      size of the table of contents
//     u64      number of entries
//     u64      hash of the 32 bytes above and the table
//     table    for each entry: u64 size, u64 hash of its bytes, u32 type, u32 length of the name,
//              the name
//     the entries' bytes, in the table's order, without gaps
//
// ShardImage builds the file in memory, in two steps: first the sizes of all entries, then their
// bytes. Shard reads a file and throws Error(data) "NAME: ..." if the file is incomplete or
// damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

struct ShardEntry {
  std::string name;
  std::uint32_t type = 0;  // for the caller; nothing here depends on it
  std::size_t size = 0;
};

class ShardImage {
 public:
  // Makes room for these entries, whose names must differ. Reuses the memory of an earlier image.
  void lay_out(std::vector<ShardEntry> entries);
  [[nodiscard]] const std::vector<ShardEntry>& entries() const { return entries_; }
  // The place in the image for the bytes of entry `index`.
  [[nodiscard]] std::span<std::byte> bytes_of(std::size_t index);
  // Call it when all bytes are in place. Writes the head and the table and returns the whole file.
  [[nodiscard]] std::span<const std::byte> seal();
  // The hash of entry `index`, after seal().
  [[nodiscard]] std::uint64_t hash_of(std::size_t index) const { return hashes_[index]; }

 private:
  std::vector<ShardEntry> entries_;
  std::vector<std::size_t> offsets_;  // of the entries' bytes
  std::vector<std::uint64_t> hashes_;
  std::vector<std::byte> file_;
};

class Shard {
 public:
  // Checks all hashes. `name` is for messages.
  Shard(std::vector<std::byte> file, std::string name);
  // Allocates memory for the entries only if head and table are correct and fit the file's size.
  [[nodiscard]] static Shard read(const std::string& path);

  [[nodiscard]] const std::vector<ShardEntry>& entries() const { return entries_; }
  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t index) const;
  // nullopt if there is no such entry.
  [[nodiscard]] std::optional<std::span<const std::byte>> find(std::string_view name) const;
  // The entry as text. Throws Error(data) if there is no such entry.
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::byte> file() const { return file_; }

 private:
  explicit Shard(std::string name) : name_(std::move(name)) {}
  [[noreturn]] void refuse(const std::string& why) const;
  // The three functions check or read the three parts of the file, in this order. Before each call,
  // file_ holds at least the bytes up to the end of that part. `size`: the file's size.
  void check_head(std::uint64_t size) const;
  void read_table();
  void check_entries() const;
  [[nodiscard]] std::size_t end_of_table() const;

  std::vector<std::byte> file_;
  std::string name_;
  std::vector<ShardEntry> entries_;
  std::vector<std::size_t> offsets_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace dp
