// Decodes image files: JPEG (libjpeg-turbo) and PNG (libpng). A file's first bytes, not its name,
// decide which format it has.
//
// An image that cannot be decoded throws BadImage, which says what is wrong: it is empty, cut off,
// damaged, of another format, or larger than the limits below. Without limits, a false header could
// cost any amount of memory and time. A JPEG is also bad if a decoder would have to guess pixels,
// for example because the file is cut off. A file that has all its pixels is good, even if it has
// other faults. Examples are superfluous bytes between two segments, a wrong field in a scan
// header, and a PNG that is cut off after its last pixel.
//
// A progressive JPEG that ends properly after some of its scans is good, too. It may be a
// deliberate preview; libjpeg and Pillow read it without a warning, with the detail of those scans.
// But if libjpeg warns about the order of the scans, the image is bad unless all scans are in the
// file.
//
// Every image becomes red, green and blue. Grey is repeated. CMYK and YCCK are converted as in
// Pillow. Samples of 16 bits keep only their upper 8 bits. Palettes are looked up. Alpha is
// dropped. The first picture of an animated PNG is used. The orientation in EXIF data is ignored,
// as in torchvision.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {

class BadImage : public Error {
 public:
  explicit BadImage(const std::string& what) : Error(ErrorKind::data, what) {}
};

// The largest image that is decoded. 2^26 pixels are 8192 x 8192; the largest image of ImageNet-1k
// has 6.1 x 10^7. The sides are limited, too, because a decoder keeps some whole rows in memory.
inline constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;
inline constexpr std::uint32_t kMostSide = 65'535;
inline constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;
// The most scans that a progressive JPEG may have. Each scan costs time, and the format itself sets
// no limit.
inline constexpr int kMostScans = 200;

// Two kinds of images are held in memory as a whole while they are decoded: interlaced PNGs, and
// JPEGs with several scans. Such an image may take up to kHeldAnyway + kHeldPerByte x file size
// bytes. (A strongly compressed photograph of 50 million pixels takes 50 times the size of its
// file.)
inline constexpr std::uint64_t kHeldAnyway = std::uint64_t{1} << 26, kHeldPerByte = 64;

enum class ImageFormat : std::uint8_t { jpeg, png };

// Special properties of an image. None of them is an error.
struct ImageKinds {
  bool is_grey = false, is_cmyk = false, has_16_bits = false, has_palette = false,
       has_alpha = false, is_animated = false;
};

struct ImageHeader {
  ImageFormat format = ImageFormat::jpeg;
  std::uint32_t width = 0, height = 0;
  ImageKinds kinds = {};
};

// Reads the header from `bytes`, the beginning of a file of `file_bytes` bytes. Returns nullopt if
// more bytes are needed; the whole file is always enough. Throws BadImage.
[[nodiscard]] std::optional<ImageHeader> read_image_header(std::span<const std::uint8_t> bytes,
                                                           std::uint64_t file_bytes);

// A rectangle of pixels.
struct PixelBox {
  std::uint32_t x = 0, y = 0, width = 0, height = 0;
  friend bool operator==(const PixelBox&, const PixelBox&) = default;
};

// Takes an image's rows from a decoder, from the top to the bottom.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Takes row `y` of the scaled image, restricted to the columns of `box`: four bytes per pixel,
  // red, green, blue and one without meaning. `box` is the same for all rows of an image.
  virtual void take_row(const PixelBox& box, std::uint32_t y, const std::uint8_t* pixels) = 0;
};

// Decodes an image at 1 / `denominator` of its size (1, 2, 4 or 8; PNG: only 1), rounded up. Gives
// the sink the rows of the part `wanted` of the scaled image. Each row has at least the columns of
// this part. Always decodes to the image's end, so that the verdict on the image depends on the
// file alone. Throws BadImage, possibly only after the sink has taken all rows. An image whose size
// differs from `header` is bad, too.
void decode_rows(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                 std::uint32_t denominator, const PixelBox& wanted, RowSink& sink);

// An image in memory, with four bytes per pixel as in RowSink::take_row().
struct DecodedImage {
  PixelBox box;                      // the part of the scaled image that was kept
  std::vector<std::uint8_t> pixels;  // 4 x box.width x box.height; keeps its memory from use to use
};

// Does the same as decode_rows(), but stores the pixels in memory.
void decode_image(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                  std::uint32_t denominator, const PixelBox& wanted, DecodedImage& image);

// ceil(size / denominator)
[[nodiscard]] constexpr std::uint32_t scaled_size(std::uint32_t size, std::uint32_t denominator) {
  return (size + denominator - 1) / denominator;
}

// may_hold() says whether decoding a file of that size may hold this much memory;
// check_held_memory() throws BadImage if not.
[[nodiscard]] constexpr bool may_hold(std::uint64_t held_bytes, std::uint64_t file_bytes) {
  return held_bytes <= kHeldAnyway + kHeldPerByte * file_bytes;
}
void check_held_memory(const char* what, std::uint64_t held_bytes, std::uint64_t file_bytes);

// The implementations for each format, for use in their own files only.
namespace jpeg {
[[nodiscard]] std::optional<ImageHeader> read_header(std::span<const std::uint8_t> bytes,
                                                     std::uint64_t file_bytes);
void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header,
            std::uint32_t denominator, const PixelBox& wanted, RowSink& sink);
}  // namespace jpeg
namespace png {
[[nodiscard]] std::optional<ImageHeader> read_header(std::span<const std::uint8_t> bytes,
                                                     std::uint64_t file_bytes);
void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const PixelBox& wanted,
            RowSink& sink);
}  // namespace png

}  // namespace dp
