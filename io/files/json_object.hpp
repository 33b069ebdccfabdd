// A JSON object on one line, for other programs.
//
// The text is valid JSON in UTF-8 for any values: bytes that are not UTF-8 become U+FFFD, and
// numbers that are not finite, which JSON does not have, become null.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dp {

// Escapes a text for use between the quotation marks of a JSON string.
[[nodiscard]] std::string json_escaped(std::string_view text);

// Members keep the order in which they are added. Add each name only once.
class JsonObject {
 public:
  JsonObject& text(std::string_view name, std::string_view value);
  // Adds a string, or null if `value` is empty.
  JsonObject& text_or_null(std::string_view name, std::string_view value);
  JsonObject& real(std::string_view name, double value);
  JsonObject& whole(std::string_view name, std::integral auto value) {
    return raw(name, std::to_string(value));
  }
  // Adds a string of 16 hexadecimal digits, because most JSON readers lose digits of large numbers.
  JsonObject& hash(std::string_view name, std::uint64_t value);
  JsonObject& flag(std::string_view name, bool value) {
    return raw(name, value ? "true" : "false");
  }
  JsonObject& null(std::string_view name) { return raw(name, "null"); }
  JsonObject& object(std::string_view name, const JsonObject& value) {
    return raw(name, value.str());
  }
  JsonObject& texts(std::string_view name, std::span<const std::string> values);
  JsonObject& objects(std::string_view name, std::span<const JsonObject> values);

  [[nodiscard]] std::string str() const { return "{" + members_ + "}"; }

 private:
  JsonObject& raw(std::string_view name, std::string_view value);
  std::string members_;
};

}  // namespace dp
