// Chooses where a GPU's gradients are encoded and added: on the GPU or on the host's processor,
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

// Returns true if gradients are to be encoded and added on the GPU. `compress` is the codec as the
// user spelt it, for error messages. Throws Error(usage) if `wanted` is `device` and a codec has no
// implementation for GPUs. has_adam: velocities (Bucket::velocity) are Adam's steps, which have no
// implementation for GPUs either.
[[nodiscard]] bool takes_device_path(ExchangePath wanted, Device& device,
                                     std::span<const Bucket> buckets, const std::string& compress,
                                     std::size_t segment_bytes, bool has_adam);

}  // namespace dp
