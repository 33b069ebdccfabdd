// Parses and prints codec specs, and makes their help texts, all from the table of codecs
// (codec_rows.hpp). Parsing splits a spec at its first colon and at commas, and checks each value
// against the codec's parameter of that key. Missing keys then get their defaults, and the rules
// for feedback are applied last.
#include "kernels/codecs/codec_spec.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

using Kind = CodecParameter::Kind;

// Bad specs are echoed in messages, but shortened.
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

// The keys of a codec, such as "block=, ef="; empty if the codec has no keys.
std::string keys_of(const CodecInfo& info) {
  std::string keys;
  for (const CodecParameter& parameter : info.parameters) {
    keys += fmt::format("{}{}=", keys.empty() ? "" : ", ", parameter.key);
  }
  return keys;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<std::size_t> place_of(const CodecParameter& parameter, std::string_view choice) {
  const auto choices = split(parameter.choices, '|');
  const auto found = std::find(choices.begin(), choices.end(), choice);
  if (found == choices.end()) return std::nullopt;
  return static_cast<std::size_t>(found - choices.begin());
}

// The value that the text stands for; nullopt if the value is not allowed.
std::optional<double> value_of(const CodecParameter& parameter, std::string_view text) {
  if (parameter.kind == Kind::choice) {
    const auto place = place_of(parameter, text);
    if (!place) return std::nullopt;
    return static_cast<double>(*place);
  }
  double value = 0.0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last) return std::nullopt;
  // Written so that NaN counts as outside.
  const bool is_inside = value >= parameter.least && value <= parameter.most &&
                         !(parameter.is_above_least && value == parameter.least);
  if (!is_inside) return std::nullopt;
  if (parameter.kind == Kind::whole) {
    const bool has_digits_only =
        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!has_digits_only || std::fmod(value, static_cast<double>(parameter.multiple_of)) != 0.0) {
      return std::nullopt;
    }
  }
  return value;
}

const CodecInfo& info_of(const CodecSpec& spec) {
  const CodecInfo* info = find_codec(spec.name);
  DP_ASSERT(info != nullptr, "no codec is called {}", spec.name);
  return *info;
}

// The message that refuses ef=on for an unbiased codec.
std::string refusal_of_feedback(const CodecInfo& info) {
  return fmt::format(
      "ef=on is refused: {} is unbiased without feedback, and random errors that are fed back "
      "may grow instead of averaging out (a published run that did both fell from 91 % "
      "to 29 % accuracy); ef=off is the default, ef=force enables it anyway",
      info.unbiased_when.empty() ? info.name : info.unbiased_when);
}

// The size of payloads for help texts, such as "8 bits a value" or "up to 0.41 bits a value". Empty
// if the codec has no payloads, or if payloads may be longer than fp32.
std::string size_of_values(const CodecSpec& spec) {
  const auto codec = make_codec(spec);
  if (codec == nullptr) return {};
  constexpr std::size_t kValues = 65536;
  const auto fixed = codec->fixed_payload_bytes(kValues);
  const double bits = 8.0 * static_cast<double>(fixed.value_or(codec->max_payload_bytes(kValues))) /
                      static_cast<double>(kValues);
  if (bits > 32.0) return {};
  const std::string number = fmt::format("{:.2g}", bits);
  return fmt::format("{}{} {} a value", fixed ? "" : "up to ", number,
                     number == "1" ? "bit" : "bits");
}

}  // namespace

std::string allowed_values(const CodecParameter& parameter) {
  if (parameter.kind == Kind::choice) {
    std::string text;
    auto choices = split(parameter.choices, '|');
    // People expect "on" before "off".
    if (parameter.choices == "off|on") std::reverse(choices.begin(), choices.end());
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
      text += choices[i];
    }
    return text;
  }
  const std::string range =
      parameter.is_above_least
          ? fmt::format("above {} and up to {}", parameter.least, parameter.most)
          : fmt::format("from {} to {}", parameter.least, parameter.most);
  if (parameter.multiple_of > 1) {
    return fmt::format("a multiple of {} {}", parameter.multiple_of, range);
  }
  return fmt::format("a {} {}", parameter.kind == Kind::whole ? "whole number" : "number", range);
}

const CodecParameter* CodecInfo::find(std::string_view key) const {
  for (const CodecParameter& parameter : parameters) {
    if (parameter.key == key) return &parameter;
  }
  return nullptr;
}

const CodecInfo* find_codec(std::string_view name) {
  for (const CodecInfo& info : codec_list()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::vector<std::string> codec_samples() {
  std::vector<std::string> samples;
  for (const CodecInfo& info : codec_list()) {
    if (info.samples.empty()) samples.emplace_back(info.name);
    samples.insert(samples.end(), info.samples.begin(), info.samples.end());
  }
  return samples;
}

HelpEntries codec_help() {
  HelpEntries entries;
  for (const CodecInfo& info : codec_list()) {
    const CodecSpec spec = parse_codec_spec(info.name);
    const std::string text = spec.text(), size = size_of_values(spec);
    std::string help(info.help);
    if (!size.empty()) help += fmt::format("; {}", size);
    const std::size_t colon = text.find(':');
    if (colon != std::string::npos) {
      const auto keys = split(std::string_view(text).substr(colon + 1), ',');
      help += fmt::format("; {}", fmt::join(keys, ", "));
    }
    entries.emplace_back(info.name, std::move(help));
  }
  return entries;
}

HelpEntries codec_key_help() {
  HelpEntries entries;
  for (const CodecInfo& info : codec_list()) {
    for (const CodecParameter& parameter : info.parameters) {
      std::pair<std::string, std::string> entry(
          parameter.key, fmt::format("{} ({})", parameter.help, allowed_values(parameter)));
      if (std::find(entries.begin(), entries.end(), entry) == entries.end()) {
        entries.push_back(std::move(entry));
      }
    }
  }
  return entries;
}

double CodecSpec::number(std::string_view key) const {
  const auto found = settings.find(key);
  DP_ASSERT(found != settings.end(), "{} has no key '{}'", name, key);
  return found->second;
}

std::size_t CodecSpec::whole(std::string_view key) const {
  return static_cast<std::size_t>(number(key));
}

bool CodecSpec::has_choice(std::string_view key, std::string_view choice) const {
  const CodecParameter* parameter = info_of(*this).find(key);
  DP_ASSERT(parameter != nullptr, "{} has no key '{}'", name, key);
  const auto place = place_of(*parameter, choice);
  DP_ASSERT(place, "'{}' is not a choice for {}", choice, key);
  return whole(key) == *place;
}

bool CodecSpec::is_biased() const {
  const CodecInfo& info = info_of(*this);
  if (info.unbiased_when.empty()) return info.is_biased;
  const std::size_t equals = info.unbiased_when.find('=');
  return !has_choice(info.unbiased_when.substr(0, equals), info.unbiased_when.substr(equals + 1));
}

std::string CodecSpec::text() const {
  std::string text = name;
  char separator = ':';
  for (const CodecParameter& parameter : info_of(*this).parameters) {
    text += fmt::format("{}{}=", separator, parameter.key);
    separator = ',';
    if (parameter.key == "block") {
      text += fmt::format("{}", block);
    } else if (parameter.key == "ef") {
      text += !feedback ? "off" : is_biased() ? "on" : "force";
    } else if (parameter.kind == Kind::choice) {
      text += split(parameter.choices, '|').at(whole(parameter.key));
    } else {
      text += fmt::format("{}", number(parameter.key));
    }
  }
  return text;
}

CodecSpec parse_codec_spec(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    throw SettingError(Setting{"codec"}, shown(text), why);
  };
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const CodecInfo* found = find_codec(name);
  if (found == nullptr) fail(fmt::format("unknown codec; known: {}", known_codecs()));
  const CodecInfo& info = *found;
  CodecSpec spec{.name = std::string(name)};
  for (const CodecParameter& parameter : info.parameters) {
    if (parameter.key == "block") {
      spec.block = static_cast<std::size_t>(parameter.preset);
    } else if (parameter.key != "ef") {
      spec.settings.emplace(parameter.key, parameter.preset);
    }
  }

  std::string_view feedback;  // as the user wrote it
  if (colon != std::string_view::npos) {
    const std::string keys = keys_of(info);
    if (keys.empty()) fail(fmt::format("{} has no settings", name));
    std::vector<std::string_view> seen;
    for (const std::string_view item : split(text.substr(colon + 1), ',')) {
      const std::size_t equals = item.find('=');
      if (equals == std::string_view::npos) {
        fail(fmt::format("'{}' is not key=value; keys of {}: {}", shown(item), name, keys));
      }
      const std::string_view key = item.substr(0, equals), value_text = item.substr(equals + 1);
      const CodecParameter* parameter = info.find(key);
      if (parameter == nullptr) {
        fail(fmt::format("unknown key '{}'; keys of {}: {}", shown(key), name, keys));
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
        fail(fmt::format("{}= is given twice", key));
      }
      seen.push_back(key);
      const auto value = value_of(*parameter, value_text);
      if (!value) {
        fail(fmt::format("{}={} must be {}", key, shown(value_text), allowed_values(*parameter)));
      }
      if (key == "block") {
        spec.block = static_cast<std::size_t>(*value);
      } else if (key == "ef") {
        feedback = value_text;
      } else {
        spec.settings.find(key)->second = *value;
      }
    }
  }
  const bool is_biased = spec.is_biased();
  if (feedback == "on" && !is_biased) fail(refusal_of_feedback(info));
  spec.feedback = feedback.empty() ? info.can_feedback() && is_biased : feedback != "off";
  return spec;
}

}  // namespace dp
