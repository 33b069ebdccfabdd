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
// ShardImage builds such a file in memory, in two steps: the sizes of all entries, then their
// bytes. Shard reads one. What is not a whole and undamaged shard is Error(data) "NAME: ...".
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
  std::uint32_t type = 0;  // as the writer says; nothing here depends on it
  std::size_t size = 0;
};

class ShardImage {
 public:
  // Makes room for these entries; their names differ. The memory of an earlier image is used again.
  void lay_out(std::vector<ShardEntry> entries);
  [[nodiscard]] const std::vector<ShardEntry>& entries() const { return entries_; }
  // Where the bytes of entry `index` are to be written.
  [[nodiscard]] std::span<std::byte> bytes_of(std::size_t index);
  // Writes the head and the table when all bytes are there, and returns the whole file.
  [[nodiscard]] std::span<const std::byte> seal();
  // After seal().
  [[nodiscard]] std::uint64_t hash_of(std::size_t index) const { return hashes_[index]; }

 private:
  std::vector<ShardEntry> entries_;
  std::vector<std::size_t> offsets_;  // of the entries' bytes
  std::vector<std::uint64_t> hashes_;
  std::vector<std::byte> file_;
};

class Shard {
 public:
  // `name` is for messages. All hashes are checked.
  Shard(std::vector<std::byte> file, std::string name);
  // Takes memory for the entries when head and table are right and fit the file's size.
  [[nodiscard]] static Shard read(const std::string& path);

  [[nodiscard]] const std::vector<ShardEntry>& entries() const { return entries_; }
  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t index) const;
  // Nothing if there is no such entry.
  [[nodiscard]] std::optional<std::span<const std::byte>> find(std::string_view name) const;
  // The same as text; throws Error(data) if there is no such entry.
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::byte> file() const { return file_; }

 private:
  explicit Shard(std::string name) : name_(std::move(name)) {}
  [[noreturn]] void refuse(const std::string& why) const;
  // The three parts of the file, one after the other; file_ has the bytes up to the part's end.
  // `size`: of the file.
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
