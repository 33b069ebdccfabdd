// The GPU's forms of the codecs.
#pragma once

#include <memory>

#include "kernels/codecs/codec.hpp"
#include "kernels/cuda/device.hpp"

namespace dp::cuda {

// Null where the codec has no form for a GPU. The device outlives the codec.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec, CudaDevice& device);

}  // namespace dp::cuda
