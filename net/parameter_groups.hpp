// Factors of learning rate and weight decay by tensor name, for the groups of an optimiser
// (optimizer.hpp).
//
// A pattern has * and ? as in file names ("layer1.*", "*.bias"). Two words stand for kinds of
// tensors: `bn` for the weights and biases of batch normalisation, `bias` for every tensor whose
// name ends in ".bias". A pattern that matches no tensor throws SettingError.
#pragma once

#include <string>
#include <vector>

#include "net/optimizer.hpp"
#include "net/parameters.hpp"

namespace dp::net {

struct NamedFactor {
  std::string pattern;
  double factor = 1.0;
  bool operator==(const NamedFactor&) const = default;
};

struct GroupOptions {
  std::vector<std::string> no_decay = {};       // weight decay 0
  std::vector<NamedFactor> lr_factors = {};     // the first match counts
  std::vector<NamedFactor> decay_factors = {};  // the first match counts
};

// The factors of each tensor, in the order of the flat buffers.
[[nodiscard]] std::vector<GroupFactors> named_factors(const Parameters& parameters,
                                                      const GroupOptions& options);

}  // namespace dp::net
