// Images as files hold them: JPEG (libjpeg-turbo) and PNG (libpng), told apart by their first
// bytes, whatever the file's name says.
//
// An image that cannot be decoded is a BadImage, which says what is wrong with it: empty, cut off,
// damaged, of another format, or larger than the limits below. The limits keep a header that lies
// from taking memory and time. Data that a JPEG decoder would repair by guessing (a file that is
// cut off) are bad here, too. A file with all its pixels is good, whatever else is odd about it: a
// superfluous byte between two segments, a wrong field of a scan header, a PNG without its end or
// the checksum before it.
//
// A progressive JPEG that has its end mark after some of its scans is good as well. It may have
// been made so, such as a preview, and libjpeg and Pillow read it without a warning, with the
// detail of those scans. Only if libjpeg warns about the order of the scans, all bits must be
// there.
//
// Every image becomes red, green and blue: grey is repeated; CMYK and YCCK become RGB as in Pillow;
// of 16 bits per sample the upper 8 are taken; a palette is looked up; alpha is left out; of an
// animated PNG the first picture counts. An orientation in EXIF data is ignored, as torchvision
// does.
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

// 2^26 pixels are 8192 x 8192. The largest image of ImageNet-1k has 6.1 x 10^7. A decoder holds
// some rows, so that their length is limited, too.
inline constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;
inline constexpr std::uint32_t kMostSide = 65'535;
inline constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;
// A progressive JPEG may have any number of scans, each of which costs time.
inline constexpr int kMostScans = 200;

// Interlaced PNGs and JPEGs of several scans are held as a whole while they are decoded. They may
// take as much memory as a file of their size justifies: a photograph of 50 million pixels, much
// compressed, takes 50 times its file. Small files may take up to kHeldAnyway.
inline constexpr std::uint64_t kHeldAnyway = std::uint64_t{1} << 26, kHeldPerByte = 64;

enum class ImageFormat : std::uint8_t { jpeg, png };

// What is special about an image; none of it is an error.
struct ImageKinds {
  bool is_grey = false, is_cmyk = false, has_16_bits = false, has_palette = false,
       has_alpha = false, is_animated = false;
};

struct ImageHeader {
  ImageFormat format = ImageFormat::jpeg;
  std::uint32_t width = 0, height = 0;
  ImageKinds kinds = {};
};

// Reads the header. `bytes` are the beginning of a file of `file_bytes` bytes. Returns nothing if
// it must be longer; the whole file always suffices. Throws BadImage.
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
  // Row `y` of the image (as scaled), of which the columns of `box` are given: four bytes a pixel,
  // red, green, blue and one without meaning. `box` is the same for all rows of an image.
  virtual void take_row(const PixelBox& box, std::uint32_t y, const std::uint8_t* pixels) = 0;
};

// Decodes at 1 / `denominator` of the size (1, 2, 4 or 8; a PNG: only 1), rounded up, and gives the
// sink the rows of the part `wanted` of the image of that size, with at least its columns. The
// image is decoded to its end, so that whether it is bad depends on the file alone. Throws
// BadImage, also after all rows, and where the image's size is not the header's.
void decode_rows(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                 std::uint32_t denominator, const PixelBox& wanted, RowSink& sink);

// An image in memory: four bytes a pixel, as above.
struct DecodedImage {
  PixelBox box;                      // the part of the whole image (as scaled) that was kept
  std::vector<std::uint8_t> pixels;  // 4 x box.width x box.height; keeps its memory from use to use
};

// As decode_rows(), into memory.
void decode_image(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                  std::uint32_t denominator, const PixelBox& wanted, DecodedImage& image);

// ceil(size / denominator)
[[nodiscard]] constexpr std::uint32_t scaled_size(std::uint32_t size, std::uint32_t denominator) {
  return (size + denominator - 1) / denominator;
}

// Whether decoding a file of that size may hold so much memory, and the same that throws BadImage.
[[nodiscard]] constexpr bool may_hold(std::uint64_t held_bytes, std::uint64_t file_bytes) {
  return held_bytes <= kHeldAnyway + kHeldPerByte * file_bytes;
}
void check_held_memory(const char* what, std::uint64_t held_bytes, std::uint64_t file_bytes);

// The parts of the above for one format; for use in their files alone.
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
