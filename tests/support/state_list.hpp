// What an owner of state lists (kernels/base/state.hpp), kept to be looked at.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"

namespace dp::test {

class StateList final : public StateVisitor {
 public:
  void block(const StateBlock& block) override { blocks.push_back(block); }
  void text(const StateText& text) override { texts.push_back(text); }

  // The floats of the block of that name in host memory; none where it is not listed.
  [[nodiscard]] std::span<float> floats(const std::string& name) const {
    const auto it = std::ranges::find(blocks, name, &StateBlock::name);
    if (it == blocks.end()) return {};
    return {reinterpret_cast<float*>(it->bytes.data()), it->bytes.size() / sizeof(float)};
  }

  std::vector<StateBlock> blocks;
  std::vector<StateText> texts;
};

}  // namespace dp::test
