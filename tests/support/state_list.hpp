// Reads, copies and restores the state that its owners list (kernels/base/state.hpp).
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp::test {

// The floats of the block of that name, which is in host memory; empty if it is not listed.
[[nodiscard]] inline std::span<float> floats_of(const StateList& list, const std::string& name) {
  const auto it = std::ranges::find(list.blocks, name, &StateBlock::name);
  if (it == list.blocks.end()) return {};
  return {reinterpret_cast<float*>(it->bytes.data()), it->bytes.size() / sizeof(float)};
}

// A copy of everything that a list names, block by block and text by text.
struct StateCopy {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::string> texts;
  bool operator==(const StateCopy&) const = default;
};

[[nodiscard]] inline StateCopy copy_state(Device& device, const StateList& list) {
  device.synchronize();
  StateCopy copy;
  for (const StateBlock& block : list.blocks) {
    std::vector<std::byte>& bytes = copy.blocks.emplace_back(block.bytes.size());
    if (block.place == StatePlace::device) {
      device.download(bytes.data(), block.bytes.data(), bytes.size());
    } else {
      std::memcpy(bytes.data(), block.bytes.data(), bytes.size());
    }
  }
  for (const StateText& text : list.texts) copy.texts.push_back(text.get());
  return copy;
}

inline void restore_state(Device& device, const StateList& list, const StateCopy& copy) {
  device.synchronize();
  for (std::size_t i = 0; i < list.blocks.size(); ++i) {
    const StateBlock& block = list.blocks[i];
    if (block.place == StatePlace::device) {
      device.upload(block.bytes.data(), copy.blocks[i].data(), block.bytes.size());
    } else {
      std::memcpy(block.bytes.data(), copy.blocks[i].data(), block.bytes.size());
    }
  }
  for (std::size_t i = 0; i < list.texts.size(); ++i) list.texts[i].set(copy.texts[i]);
}

}  // namespace dp::test
