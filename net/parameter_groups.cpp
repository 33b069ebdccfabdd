#include "net/parameter_groups.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "kernels/base/setting_error.hpp"

namespace dp::net {

namespace {

// "layer1.0.bn1" for "layer1.0.bn1.weight".
std::string_view owner_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

// A layer is a normalisation if it has running statistics.
bool is_normalisation(const Parameters& parameters, const Parameter& tensor) {
  const std::string_view owner = owner_of(tensor.name);
  return std::ranges::any_of(parameters.statistics(), [&](const Parameter& statistic) {
    return owner_of(statistic.name) == owner;
  });
}

bool matches(const Parameters& parameters, const Parameter& tensor, const std::string& pattern) {
  if (pattern == "bn") return is_normalisation(parameters, tensor);
  if (pattern == "bias") return tensor.name.ends_with(".bias");
  return ::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
}

void check_is_used(const Parameters& parameters, const std::string& pattern, Setting setting) {
  const auto tensors = parameters.tensors();
  if (std::ranges::any_of(
          tensors, [&](const Parameter& tensor) { return matches(parameters, tensor, pattern); })) {
    return;
  }
  throw SettingError(setting, pattern,
                     fmt::format("no tensor of the model has such a name; allowed: bn, bias or a "
                                 "name with * and ?, such as {}",
                                 tensors.front().name));
}

// The factor of the first pattern that matches; 1 if none does.
double factor_of(const Parameters& parameters, const Parameter& tensor,
                 const std::vector<NamedFactor>& factors) {
  for (const auto& [pattern, factor] : factors) {
    if (matches(parameters, tensor, pattern)) return factor;
  }
  return 1.0;
}

}  // namespace

std::vector<GroupFactors> named_factors(const Parameters& parameters, const GroupOptions& options) {
  for (const std::string& pattern : options.no_decay) {
    check_is_used(parameters, pattern, Setting{"tensors without weight decay"});
  }
  for (const NamedFactor& row : options.lr_factors) {
    check_is_used(parameters, row.pattern, Setting{"learning-rate factors"});
  }
  for (const NamedFactor& row : options.decay_factors) {
    check_is_used(parameters, row.pattern, Setting{"decay factors"});
  }
  std::vector<GroupFactors> factors;
  for (const Parameter& tensor : parameters.tensors()) {
    const bool decays = std::ranges::none_of(options.no_decay, [&](const std::string& pattern) {
      return matches(parameters, tensor, pattern);
    });
    factors.push_back(
        {.learning_rate = factor_of(parameters, tensor, options.lr_factors),
         .weight_decay = decays ? factor_of(parameters, tensor, options.decay_factors) : 0.0});
  }
  return factors;
}

}  // namespace dp::net
