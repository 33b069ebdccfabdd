// The codecs for GPUs.
#pragma once

#include <memory>

#include "kernels/codecs/codec.hpp"
#include "kernels/cuda/device.hpp"

namespace dp::cuda {

// Returns null if the codec has no form for a GPU. The device must outlive the codec.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CodecSpec& spec, CudaDevice& device);

}  // namespace dp::cuda
