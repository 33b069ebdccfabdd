#include "app/options/options_keyed.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

bool has_key(const OptionRow& key, const std::string& name) {
  return key.names.empty() || std::ranges::find(key.names, name) != key.names.end();
}

const OptionRow* find_key(const OptionRow& row, std::string_view key) {
  const auto found = std::ranges::find(row.keys, key, &OptionRow::name);
  return found == row.keys.end() ? nullptr : &*found;
}

std::string keys_of_name(const OptionRow& row, const std::string& name) {
  std::vector<std::string> keys;
  for (const OptionRow& key : row.keys) {
    if (has_key(key, name)) keys.push_back(key.name);
  }
  return keys.empty() ? name + " has no keys" : fmt::format("known: {}", fmt::join(keys, ", "));
}

// Position of the first key; npos: there is none.
std::size_t keys_begin(const OptionRow& row, std::string_view text) {
  const std::size_t colon = text.find(':'), equals = text.find('=');
  if (!row.implied_name.empty() && equals < colon) return 0;
  return colon == std::string_view::npos ? colon : colon + 1;
}

void set_key(const OptionRow& row, const OptionRow& key, std::string_view text,
             const std::string& value) {
  try {
    if (value.empty()) throw_error(ErrorKind::usage, "empty");
    key.set(value);
  } catch (const Error& error) {
    // A key without `allowed` has a parser of its own. That parser's message is kept.
    if (key.allowed.empty() && !value.empty()) {
      throw_error(ErrorKind::usage, "--{} {}=: {}", row.name, key.name, error.what());
    }
    throw_error(ErrorKind::usage, "--{} {}: {}= must be {}", row.name, shown(text), key.name,
                key.allowed.empty() ? "given a value" : key.allowed);
  }
}

}  // namespace

std::string name_of_keyed(std::string_view text) {
  return std::string(text.substr(0, text.find(':')));
}

OptionRow key_of(std::vector<std::string> names, OptionRow row) {
  row.names = std::move(names);
  return row;
}

KeyedValue split_keyed(const OptionRow& row, std::string_view text) {
  const std::size_t begin = keys_begin(row, text);
  KeyedValue value;
  value.name = begin == 0 ? row.implied_name : name_of_keyed(text);
  if (begin == std::string_view::npos) return value;
  const OptionRow* before = nullptr;
  for (const std::string& part : split_at_commas(text.substr(begin))) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const OptionRow* key = find_key(row, name);
    // In a list of codecs, this part is a key of the codec before it.
    if (key == nullptr && before != nullptr && before->takes_keys) {
      value.keys.back().second += "," + part;
      continue;
    }
    if (key == nullptr && row.has_more_keys) {
      value.name += (value.name.find(':') == std::string::npos ? ":" : ",") + part;
      continue;
    }
    const auto refuse = [&](const std::string& why) {
      throw_error(ErrorKind::usage, "--{} {}: {}", row.name, shown(text), why);
    };
    if (equals == part.size()) {
      refuse(fmt::format("'{}' must be key=value; {}", shown(part), keys_of_name(row, value.name)));
    }
    if (key == nullptr || !has_key(*key, value.name)) {
      refuse(fmt::format("unknown key '{}' of {}; {}", shown(name),
                         row.implied_name.empty() ? value.name : "--" + row.name,
                         keys_of_name(row, value.name)));
    }
    const auto is_same = [&](const auto& given) { return given.first == name; };
    if (std::ranges::any_of(value.keys, is_same)) refuse(name + "= is given twice");
    value.keys.emplace_back(name, part.substr(equals + 1));
    before = key;
  }
  return value;
}

OptionRow keyed_row(OptionRow head, std::vector<OptionRow> keys,
                    const std::vector<std::string>& presets, const std::string& implied_name) {
  for (std::size_t k = 0; k < keys.size(); ++k) keys[k].preset = presets.at(k);
  OptionRow row = head;
  row.implied_name = implied_name;
  if (implied_name.empty() && !row.has_more_keys) row.placeholder += "[:key=value,...]";
  row.keys = std::move(keys);
  // The copy is made before the functions below are set. With these functions it would refer to
  // itself and never be freed.
  const auto shape = std::make_shared<OptionRow>(row);
  row.set = [shape, set = head.set](std::string_view text) {
    // Sets the name first, so that a wrong name is reported before keys that do not belong to it.
    if (!shape->has_more_keys) {
      set(name_of_keyed(keys_begin(*shape, text) == 0 ? shape->implied_name : text));
    }
    const KeyedValue value = split_keyed(*shape, text);
    if (shape->has_more_keys) set(value.name);
    for (const OptionRow& key : shape->keys) key.set(key.preset);
    for (const auto& [name, word] : value.keys) {
      set_key(*shape, *find_key(*shape, name), text, word);
    }
  };
  row.get = [shape, get = head.get] {
    const std::string name = get();
    std::vector<std::string> changed;
    for (const OptionRow& key : shape->keys) {
      const std::string value = key.get();
      // A key that has no use because of another option has an empty value. It is left out.
      if (!has_key(key, name) || value.empty() || value == key.preset) continue;
      changed.push_back(key.name + "=" + value);
    }
    if (changed.empty() || name.empty()) return name;
    const std::string words = fmt::format("{}", fmt::join(changed, ","));
    if (name == shape->implied_name) return words;
    return name + (name.find(':') == std::string::npos ? ":" : ",") + words;
  };
  return row;
}

}  // namespace dp
