// Shared by the reader and the writer of packs (image_pack.hpp describes the format).
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <type_traits>

#include "io/images/encoded_image.hpp"

namespace dp {

inline constexpr const char* kPackFormat = "dptrain image pack";
inline constexpr int kPackVersion = 1;
inline constexpr hsize_t kHeaderColumns = 4;

struct PackPart {
  const char* group;
  const char* name;  // ImageTree::name
};
inline constexpr PackPart kPackParts[] = {
    {"train", "train"}, {"val", "val"}, {"test", "test"}, {"all", ""}};

template <class T>
[[nodiscard]] hid_t pack_type() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return H5T_NATIVE_UINT8;
  if constexpr (std::is_same_v<T, std::int32_t>) return H5T_NATIVE_INT32;
  if constexpr (std::is_same_v<T, std::uint32_t>) return H5T_NATIVE_UINT32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return H5T_NATIVE_UINT64;
}

[[nodiscard]] inline ImageKinds kinds_of(std::uint32_t bits) {
  return {.is_grey = (bits & 1) != 0,
          .is_cmyk = (bits & 2) != 0,
          .has_16_bits = (bits & 4) != 0,
          .has_palette = (bits & 8) != 0,
          .has_alpha = (bits & 16) != 0,
          .is_animated = (bits & 32) != 0};
}

[[nodiscard]] inline std::uint32_t bits_of(const ImageKinds& kinds) {
  return (kinds.is_grey ? 1u : 0u) | (kinds.is_cmyk ? 2u : 0u) | (kinds.has_16_bits ? 4u : 0u) |
         (kinds.has_palette ? 8u : 0u) | (kinds.has_alpha ? 16u : 0u) |
         (kinds.is_animated ? 32u : 0u);
}

}  // namespace dp
