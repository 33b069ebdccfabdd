// ecq on a GPU (ecq.hpp has the wire format). The GPU rounds the values, keeps what is dropped in
// the residual, and lists the codes that are not zero. Only this list crosses the bus; the host
// entropy-codes it. The same holds in the other direction.
#pragma once

#include <memory>

#include "kernels/codecs/codec.hpp"
#include "kernels/cuda/device.hpp"

namespace dp::cuda {

// The device must outlive the codec. Payloads must be host memory.
[[nodiscard]] std::unique_ptr<Codec> make_ecq(const CodecSpec& spec, CudaDevice& device);

}  // namespace dp::cuda
