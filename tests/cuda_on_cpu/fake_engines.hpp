// The engines of the fake cuDNN and the notes that its heuristics give. Each engine is a trap for a
// caller that ignores its notes or does not check its results.
#pragma once

#include "tests/cuda_on_cpu/fake_cudnn_descriptor.hpp"

namespace dp::cuda_on_cpu {

struct Engine {
  std::int64_t index;
  std::vector<cudnnBackendNumericalNote_t> numerical = {};
  std::vector<cudnnBackendBehaviorNote_t> behaviour = {};
  std::int64_t workspace = 0;
  bool is_refused = false, fails = false, is_tf32 = false, is_noisy = false, crashes = false;
};

inline const std::vector<Engine>& engines() {
  static const std::vector<Engine> list = {
      {.index = 0},
      {.index = 1, .workspace = 1003},
      {.index = 5, .numerical = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, .is_noisy = true},
      {.index = 7,
       .numerical = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
       .is_tf32 = true},
      {.index = 9, .is_refused = true},
      {.index = 11, .workspace = std::int64_t{2} << 30},
      {.index = 12, .fails = true},
      {.index = 13, .behaviour = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION}},
      // Listed only if a test asks for them.
      {.index = 14, .crashes = true},
      {.index = 15, .workspace = std::int64_t{512} << 20},
  };
  return list;
}
inline const Engine& engine(std::int64_t index) {
  for (const Engine& e : engines()) {
    if (e.index == index) return e;
  }
  refuse("no such engine");
}

struct Configuration {
  std::int64_t engine;
  std::int64_t tile;  // the value of its knob; below zero: it has none
};

// Engines that a test puts before all others.
inline std::vector<Configuration>& favourites() {
  static std::vector<Configuration> list;
  return list;
}

// In the heuristics' order, the most promising first.
inline std::vector<Configuration> configurations(cudnnBackendHeurMode_t mode) {
  if (mode == CUDNN_HEUR_MODE_A) {
    std::vector<Configuration> list = favourites();
    list.insert(list.end(), {{5, 1}, {9, -1}, {11, 0}, {7, 3}, {1, 4}, {1, 1}, {12, -1}});
    return list;
  }
  if (mode == CUDNN_HEUR_MODE_FALLBACK) return {{0, -1}, {1, 4}, {13, -1}};
  refuse("heuristics that this fake does not have", CUDNN_STATUS_NOT_SUPPORTED);
}

}  // namespace dp::cuda_on_cpu
