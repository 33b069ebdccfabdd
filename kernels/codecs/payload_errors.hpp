// Errors for payloads that no encoder writes. Usable from .cu files.
#pragma once

#include <cstddef>

#include "kernels/codecs/codec.hpp"

namespace dp {

// Both throw Error(communication).
[[noreturn]] void throw_payload_length(const CodecSpec& spec, std::size_t got, std::size_t want,
                                       std::size_t floats);
[[noreturn]] void throw_payload_content(const CodecSpec& spec);

}  // namespace dp
