#include "app/checkpoint/checkpoint_head.hpp"

#include <charconv>
#include <sstream>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::string_view kIs = " = ";

// Escapes line breaks, because a value must fit on one line.
std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\\') {
      text += "\\\\";
    } else {
      text += c;
    }
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      value += text[i];
    } else {
      value += text[++i] == 'n' ? '\n' : text[i];
    }
  }
  return value;
}

}  // namespace

CheckpointHead::CheckpointHead(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(kIs);
    if (at == std::string::npos) {
      throw_error(ErrorKind::data, "a checkpoint's head has a line without a key");
    }
    values_[line.substr(0, at)] = unescaped(std::string_view(line).substr(at + kIs.size()));
  }
}

std::string CheckpointHead::text() const {
  std::string text;
  for (const auto& [key, value] : values_) {
    text += fmt::format("{}{}{}\n", key, kIs, escaped(value));
  }
  return text;
}

void CheckpointHead::set_owner(const ShardFile& part) {
  set("format", kHeadFormat);
  set("step", part.checkpoint.step);
  set("part.rank", part.rank);
  set("part.ranks", part.checkpoint.ranks);
  set("part.attempt", part.checkpoint.attempt);
}

void CheckpointHead::check_owner(const ShardFile& part) const {
  if (!has_owner()) return;
  if (number("format") > kHeadFormat) {
    throw_error(ErrorKind::data, "was written by a newer dptrain: format {}; allowed here: 1 to {}",
                number("format"), kHeadFormat);
  }
  CheckpointHead wanted;
  wanted.set_owner(part);
  const auto is_its = [&](const char* key) { return number(key) == wanted.number(key); };
  if (is_its("step") && is_its("part.rank") && is_its("part.ranks") && is_its("part.attempt")) {
    return;
  }
  throw_error(ErrorKind::data,
              "belongs to rank {} of {} at step {} (start {:08x}), not to the rank and step in its "
              "name",
              number("part.rank"), number("part.ranks"), number("step"), number("part.attempt"));
}

const std::string& CheckpointHead::get(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    throw_error(ErrorKind::data, "a checkpoint's head has no {}", key);
  }
  return found->second;
}

std::uint64_t CheckpointHead::number(const std::string& key) const {
  const std::string& text = get(key);
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    throw_error(ErrorKind::data, "a checkpoint's head has no number as the value of {}", key);
  }
  return value;
}

std::map<std::string, std::string> CheckpointHead::all(const std::string& prefix) const {
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : values_) {
    if (key.starts_with(prefix)) found[key.substr(prefix.size())] = value;
  }
  return found;
}

}  // namespace dp
