// Warnings about slow choices at the start of a GPU run.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

struct GpuFacts {
  bool is_fp32 = false;                // --precision fp32
  std::string exchange_path = {};      // "device", "host"; empty: nothing is exchanged
  std::vector<CodecSpec> codecs = {};  // of the buckets
  double gradient_bytes = 0;
  bool sends_adams_steps = false;     // velocity= with Adam
  bool keeps_velocities_off = false;  // --compress auto would send Adam's steps on a CPU
  std::size_t ranks_on_gpu = 1;       // on rank 0's GPU, including rank 0
  bool has_mps = false;               // NVIDIA's server that lets processes share a GPU
};

// Rows of the start table: a word and a text.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> gpu_notes(const GpuFacts& facts);

// Whether MPS runs on this host, that is, whether a process reads its pipe.
[[nodiscard]] bool has_mps();

}  // namespace dp
