#include "io/encoded_image.hpp"

#include <algorithm>
#include <string_view>

namespace dp {
namespace {

bool starts_with(std::span<const std::uint8_t> bytes, std::string_view start) {
  return bytes.size() >= start.size() &&
         std::equal(start.begin(), start.end(), bytes.begin(),
                    [](char c, std::uint8_t byte) { return static_cast<std::uint8_t>(c) == byte; });
}

constexpr std::string_view kJpegStart = "\xFF\xD8\xFF";
constexpr std::string_view kPngStart = "\x89PNG\r\n\x1A\n";

// What else is often called .jpg.
std::string name_other_format(std::span<const std::uint8_t> bytes) {
  if (starts_with(bytes, "GIF8")) return "is a GIF";
  if (starts_with(bytes, "BM")) return "is a BMP";
  if (starts_with(bytes, "RIFF")) return "is a WebP";
  if (starts_with(bytes, "II*") || starts_with(bytes, "MM")) return "is a TIFF";
  if (starts_with(bytes, "<")) return "is HTML, XML or SVG";
  return "is no image";
}

}  // namespace

std::optional<ImageHeader> read_image_header(std::span<const std::uint8_t> bytes,
                                             std::uint64_t file_bytes) {
  if (file_bytes == 0) throw BadImage("is empty");
  if (file_bytes > kMostFileBytes) {
    throw BadImage(fmt::format("has {} bytes; the limit is {}", file_bytes, kMostFileBytes));
  }
  std::optional<ImageHeader> header;
  if (starts_with(bytes, kJpegStart)) {
    header = jpeg::read_header(bytes, file_bytes);
  } else if (starts_with(bytes, kPngStart)) {
    header = png::read_header(bytes, file_bytes);
  } else {
    throw BadImage(name_other_format(bytes) + "; JPEG and PNG are read");
  }
  if (!header) return {};
  if (header->width == 0 || header->height == 0) {
    throw BadImage(fmt::format("says that it has {}x{} pixels", header->width, header->height));
  }
  if (std::uint64_t{header->width} * header->height > kMostPixels) {
    throw BadImage(fmt::format("says that it has {}x{} pixels; the limit is {}", header->width,
                               header->height, kMostPixels));
  }
  return header;
}

void decode_image(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                  std::uint32_t denominator, const PixelBox& wanted, DecodedImage& image) {
  const std::uint32_t width = scaled_size(header.width, denominator);
  const std::uint32_t height = scaled_size(header.height, denominator);
  DP_ASSERT(wanted.width > 0 && wanted.height > 0 && wanted.x + wanted.width <= width &&
                wanted.y + wanted.height <= height,
            "{}x{} pixels at {}, {} of {}x{}", wanted.width, wanted.height, wanted.x, wanted.y,
            width, height);
  if (header.format == ImageFormat::jpeg) {
    jpeg::decode(bytes, header, denominator, wanted, image);
  } else {
    DP_ASSERT(denominator == 1, "a PNG at 1/{} of its size", denominator);
    png::decode(bytes, header, wanted, image);
  }
}

}  // namespace dp
