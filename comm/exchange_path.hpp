// Chooses where a GPU's gradients are encoded and added: on the GPU or by the host's processor,
// whichever is faster (kernels/bucket_link.hpp).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "comm/topologies/buckets.hpp"
#include "kernels/device.hpp"

namespace dp {

// `automatic` chooses by measurement (Device::tuning).
enum class ExchangePath { automatic, host, device };

// Whether it is the GPU. compress: as the user gave it, for messages. Throws Error(usage) if the
// wanted path is `device` and a codec has no form for GPUs.
[[nodiscard]] bool takes_device_path(ExchangePath wanted, Device& device,
                                     std::span<const Bucket> buckets, const std::string& compress,
                                     std::size_t segment_bytes);

}  // namespace dp
