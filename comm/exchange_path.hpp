// Chooses the place where a GPU's gradients are encoded and added, the GPU or the host's processor:
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

// True: the GPU. `compress` is the user's spelling, for messages. Throws Error(usage) if `device`
// is wanted and a codec has no implementation for GPUs.
[[nodiscard]] bool takes_device_path(ExchangePath wanted, Device& device,
                                     std::span<const Bucket> buckets, const std::string& compress,
                                     std::size_t segment_bytes);

}  // namespace dp
