#include "io/files/json_object.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace dp {
namespace {

// The length of the UTF-8 character at the beginning of the text, in bytes; 0 if the text does not
// begin with a valid character. Overlong forms, surrogates and code points beyond U+10FFFF are
// invalid (RFC 3629).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i) {
      if ((byte(i) & 0xC0u) != 0x80u) return false;
    }
    return true;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80u) return 1;
  if (first >= 0xC2u && first <= 0xDFu) return continues(1) ? 2 : 0;
  if (first >= 0xE0u && first <= 0xEFu) {
    if ((first == 0xE0u && second < 0xA0u) || (first == 0xEDu && second > 0x9Fu)) return 0;
    return continues(2) ? 3 : 0;
  }
  if (first >= 0xF0u && first <= 0xF4u) {
    if ((first == 0xF0u && second < 0x90u) || (first == 0xF4u && second > 0x8Fu)) return 0;
    return continues(3) ? 4 : 0;
  }
  return 0;
}

std::string quoted(std::string_view text) { return "\"" + json_escaped(text) + "\""; }

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

JsonObject& JsonObject::raw(std::string_view name, std::string_view value) {
  if (!members_.empty()) members_ += ',';
  members_.append(quoted(name)).append(1, ':').append(value);
  return *this;
}

JsonObject& JsonObject::text(std::string_view name, std::string_view value) {
  return raw(name, quoted(value));
}

JsonObject& JsonObject::text_or_null(std::string_view name, std::string_view value) {
  return value.empty() ? null(name) : text(name, value);
}

JsonObject& JsonObject::real(std::string_view name, double value) {
  return std::isfinite(value) ? raw(name, fmt::format("{}", value)) : null(name);
}

JsonObject& JsonObject::hash(std::string_view name, std::uint64_t value) {
  return text(name, fmt::format("{:016x}", value));
}

JsonObject& JsonObject::texts(std::string_view name, std::span<const std::string> values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ",") + quoted(value);
  return raw(name, "[" + list + "]");
}

JsonObject& JsonObject::objects(std::string_view name, std::span<const JsonObject> values) {
  std::string list;
  for (const JsonObject& value : values) list += (list.empty() ? "" : ",") + value.str();
  return raw(name, "[" + list + "]");
}

}  // namespace dp
