#include "app/options/options_removed.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "app/options/options_keyed.hpp"
#include "app/options/options_table.hpp"
#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

struct Removed {
  std::string_view name;    // of the option that was removed
  std::string_view option;  // the option that has this value today
  std::string_view names;   // names of that option that have the key, joined by |; empty: all
  std::string_view usual;   // the name to suggest if none is given
  std::string_view key;     // several if the value is a list: "start,peak,end"
};

constexpr std::array kRemoved = {
    Removed{"beta1", "optimizer", "adam|adamw", "adam", "beta1"},
    Removed{"beta2", "optimizer", "adam|adamw", "adam", "beta2"},
    Removed{"epsilon", "optimizer", "adam|adamw", "adam", "epsilon"},
    Removed{"lars-trust", "optimizer", "lars", "lars", "trust"},
    Removed{"muon-lr", "optimizer", "muon", "muon", "lr"},
    Removed{"muon-momentum", "optimizer", "muon", "muon", "momentum"},
    Removed{"muon-linear", "optimizer", "muon", "muon", "linear"},
    Removed{"lr-milestones", "lr-schedule", "step", "step", "milestones"},
    Removed{"lr-gamma", "lr-schedule", "step", "step", "gamma"},
    Removed{"lr-triangle", "lr-schedule", "triangular", "triangular", "start,peak,end"},
    Removed{"lr-power", "lr-schedule", "poly", "poly", "power"},
    Removed{"lr-interval", "lr-schedule", "", "cosine", "by"},
    Removed{"crop-padding", "augment", "on", "on", "padding"},
    Removed{"crop-fill", "augment", "on", "on", "fill"},
    Removed{"flip", "augment", "on", "on", "flip"},
    Removed{"cutout", "augment", "on", "on", "cutout"},
    Removed{"outer-lr", "sync-every", "", "16", "outer-lr"},
    Removed{"outer-momentum", "sync-every", "", "16", "outer-momentum"},
    Removed{"sync-delay", "sync-every", "", "16", "delay"},
    Removed{"plan-ranks", "plan", "", "", "ranks"},
    Removed{"plan-batches", "plan", "", "", "batches"},
    Removed{"plan-rates", "plan", "", "", "rates"},
    Removed{"plan-delay-ms", "plan", "", "", "delay-ms"},
    Removed{"plan-sync", "plan", "", "", "sync"},
    Removed{"plan-codecs", "plan", "", "", "codecs"},
    Removed{"plan-topologies", "plan", "", "", "topologies"},
};

const Removed* find_removed(std::string_view name) {
  const auto found = std::ranges::find(kRemoved, name, &Removed::name);
  return found == kRemoved.end() ? nullptr : &*found;
}

bool has_key(const Removed& removed, const std::string& name) {
  if (removed.names.empty()) return true;
  const std::vector<std::string> names = split_at(removed.names, '|');
  return std::ranges::find(names, name) != names.end();
}

// "milestones=60/120" for --lr-milestones 60,120.
std::string as_key(const Removed& removed, std::string_view value) {
  const std::vector<std::string> keys = split_at_commas(removed.key);
  const std::vector<std::string> values =
      removed.key == "codecs" ? split_specs(value) : split_at_commas(value);
  if (keys.size() == 1) {
    return fmt::format("{}={}", removed.key,
                       value.empty() ? "..." : fmt::format("{}", fmt::join(values, "/")));
  }
  std::vector<std::string> words;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    words.push_back(keys[k] + "=" + (k < values.size() ? values[k] : "..."));
  }
  return fmt::format("{}", fmt::join(words, ","));
}

std::string value_of(const auto& given, std::string_view name) {
  const auto found = std::ranges::find(given, name, [](const auto& pair) { return pair.first; });
  return found == given.end() ? std::string() : found->second;
}

// `base` is a value of `option`. Appends the keys that replace removed options in `given`, except
// keys that do not apply to `base`. The removed option `wanted` is replaced even if it has no value
// in `given`.
std::string with_keys(std::string base, std::string_view option, const auto& given,
                      std::string_view wanted = "") {
  const std::string name = name_of_keyed(base);
  for (const Removed& removed : kRemoved) {
    const std::string value = value_of(given, removed.name);
    const bool counts = !value.empty() || removed.name == wanted;
    if (removed.option != option || !counts || !has_key(removed, name)) continue;
    const bool has_keys = base.find_first_of(":=") != std::string::npos;
    base += base.empty() ? "" : has_keys ? "," : ":";
    base += as_key(removed, value);
  }
  return base;
}

// The value as this version prints it, with the key `but` at its default.
std::string printed(const std::string& option, const std::string& value,
                    const std::string& but = "") {
  Options options;
  const OptionTable table = option_table({}, options);
  const OptionRow* row = find_option(table, option);
  DP_ASSERT(row != nullptr, "no option is called {}", option);
  row->set(value);
  for (const OptionRow& key : row->keys) {
    if (key.name == but) key.set(key.preset);
  }
  return row->get();
}

}  // namespace

bool is_removed(std::string_view name) { return find_removed(name) != nullptr; }

void refuse_removed(const NamedValues& given) {
  const auto first = std::ranges::find_if(given, [](const auto& g) { return is_removed(g.first); });
  if (first == given.end()) return;
  const Removed& removed = *find_removed(first->first);
  const std::string base = value_of(given, removed.option);
  const bool fits = !base.empty() && base != "off" && has_key(removed, name_of_keyed(base));
  const std::string value =
      with_keys(fits ? base : std::string(removed.usual), removed.option, given, removed.name);
  throw_error(ErrorKind::usage, "--{}{}{}: write --{} {}", first->first,
              first->second.empty() ? "" : " ", shown(first->second), removed.option, value);
}

std::map<std::string, std::string> with_keys(std::map<std::string, std::string> options) {
  std::map<std::string, std::string> today = options;
  for (const Removed& removed : kRemoved) {
    const auto base = options.find(std::string(removed.option));
    if (today.erase(std::string(removed.name)) == 0 || base == options.end()) continue;
    today[base->first] = printed(base->first, with_keys(base->second, removed.option, options));
  }
  return today;
}

std::string without_key(const std::string& option, const std::string& value,
                        const std::string& key) {
  return printed(option, value, key);
}

}  // namespace dp
