// What a checkpoint's file says about itself: the entry "checkpoint", lines of "key = value".
//
// It has the part's owner, the place in the run, the log, what was chosen by measurement, and the
// options and the machine, which a run that goes on is compared with.
//
// The key "format" is the version of the head, 2 today. Heads of format 1 have no such key and no
// owner; for them rank and step are taken from the file's name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/files/checkpoint_folder.hpp"

namespace dp {

inline constexpr std::string_view kHeadEntry = "checkpoint";
inline constexpr std::uint64_t kHeadFormat = 2;

class CheckpointHead {
 public:
  CheckpointHead() = default;
  // Throws Error(data) for text that text() did not write.
  explicit CheckpointHead(const std::string& text);
  [[nodiscard]] std::string text() const;

  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  void set(const std::string& key, std::uint64_t value) { set(key, std::to_string(value)); }
  // Whose part it is: step, rank, number of ranks and attempt.
  void set_owner(const ShardFile& part);
  // Whether the head has an owner, as it does from format 2 on.
  [[nodiscard]] bool has_owner() const { return has("format"); }
  // Throws Error(data) if it has one, and this is not the part, or if the format is a later one.
  void check_owner(const ShardFile& part) const;
  [[nodiscard]] bool has(const std::string& key) const { return values_.contains(key); }
  // Both throw Error(data) where there is no such key, or no such number.
  [[nodiscard]] const std::string& get(const std::string& key) const;
  [[nodiscard]] std::uint64_t number(const std::string& key) const;
  // All keys that begin so, with the rest of the key.
  [[nodiscard]] std::map<std::string, std::string> all(const std::string& prefix) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace dp
