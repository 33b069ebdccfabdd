// The head of a checkpoint's file: the entry "checkpoint", lines of "key = value".
//
// Each rank writes one file, its part of the checkpoint. The head names the part's owner: step,
// rank, number of ranks and attempt. It also holds the position in the run, a description of the
// run log, the choices made by measurement, the options, and the machine. A resumed run is compared
// with these options and this machine.
//
// The key "format" is the version of the head, 2 today. Heads of format 1 have neither this key nor
// an owner; for them rank and step are taken from the file's name.
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
  // Sets the part's owner: step, rank, number of ranks and attempt.
  void set_owner(const ShardFile& part);
  // Whether the head names an owner. Heads of format 2 and later do.
  [[nodiscard]] bool has_owner() const { return has("format"); }
  // Throws Error(data) if the head names another owner than the owner of `part`, or if its format
  // is newer than kHeadFormat. A head without an owner is accepted.
  void check_owner(const ShardFile& part) const;
  [[nodiscard]] bool has(const std::string& key) const { return values_.contains(key); }
  // get() and number() throw Error(data) if the key is missing. number() also throws it if the
  // value is not a number.
  [[nodiscard]] const std::string& get(const std::string& key) const;
  [[nodiscard]] std::uint64_t number(const std::string& key) const;
  // All entries whose key has this prefix. The returned keys are without the prefix.
  [[nodiscard]] std::map<std::string, std::string> all(const std::string& prefix) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace dp
