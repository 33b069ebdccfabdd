#include <algorithm>
#include <charconv>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/cpu_driver.hpp"

namespace dp {
namespace {

constexpr std::size_t kMinBlock = 64;

// Bad specs are echoed, but not without end.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return text.size() <= kMost ? std::string(text) : fmt::format("{}...", text.substr(0, kMost));
}

std::string known_codecs() {
  std::string names;
  for (const CodecInfo& info : codec_list()) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

// "block=, ef=" of a codec; empty where it has no keys.
std::string keys_of(const CodecInfo& info) {
  std::string keys;
  if (info.default_block > 1) keys = "block=";
  if (info.can_feedback) keys += keys.empty() ? "ef=" : ", ef=";
  return keys;
}

}  // namespace

std::string CodecSpec::text() const {
  std::string text = name;
  for (const CodecInfo& info : codec_list()) {
    if (info.name != name) continue;
    char separator = ':';
    if (info.default_block > 1) {
      text += fmt::format("{}block={}", separator, block);
      separator = ',';
    }
    if (info.can_feedback) text += fmt::format("{}ef={}", separator, feedback ? "on" : "off");
  }
  return text;
}

CodecSpec parse_codec_spec(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    throw_error(ErrorKind::usage, "--compress {}: {}", shown(text), why);
  };
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto list = codec_list();
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const CodecInfo& info) { return info.name == name; });
  if (found == list.end()) fail(fmt::format("unknown codec; known: {}", known_codecs()));
  const CodecInfo& info = *found;
  CodecSpec spec{std::string(name), info.default_block, info.default_feedback};
  if (colon == std::string_view::npos) return spec;

  const std::string keys = keys_of(info);
  if (keys.empty()) fail(fmt::format("{} has no settings", name));
  bool seen_block = false, seen_feedback = false;
  std::string_view rest = text.substr(colon + 1);
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      fail(fmt::format("'{}' is not key=value; keys of {}: {}", shown(item), name, keys));
    }
    const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "block" && info.default_block > 1) {
      if (seen_block) fail("block= is given twice");
      seen_block = true;
      std::size_t block = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), block);
      if (error != std::errc() || end != value.data() + value.size() || block < kMinBlock ||
          block > kMaxBlock || block % 8 != 0) {
        fail(fmt::format("block={} must be a multiple of 8 from {} to {}", shown(value), kMinBlock,
                         kMaxBlock));
      }
      spec.block = block;
    } else if (key == "ef" && info.can_feedback) {
      if (seen_feedback) fail("ef= is given twice");
      seen_feedback = true;
      if (value != "on" && value != "off")
        fail(fmt::format("ef={} must be on or off", shown(value)));
      spec.feedback = value == "on";
    } else {
      fail(fmt::format("unknown key '{}'; keys of {}: {}", shown(key), name, keys));
    }
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

}  // namespace dp
