#include "io/images/encoded_image.hpp"

#include <algorithm>
#include <string_view>

#include "io/images/image_names.hpp"

namespace dp {
namespace {

bool starts_with(std::span<const std::uint8_t> bytes, std::string_view start) {
  return bytes.size() >= start.size() &&
         std::equal(start.begin(), start.end(), bytes.begin(),
                    [](char c, std::uint8_t byte) { return static_cast<std::uint8_t>(c) == byte; });
}

constexpr std::string_view kJpegStart = "\xFF\xD8\xFF";
constexpr std::string_view kPngStart = "\x89PNG\r\n\x1A\n";

// Formats whose files are often misnamed .jpg or .png, and the bytes that mark them. The first
// match counts, so longer marks ("ftypavif") come before shorter ones ("ftyp").
struct OtherFormat {
  std::size_t at;  // the offset of the mark in the file
  std::string_view mark;
  const char* what;
};
using namespace std::string_view_literals;
constexpr OtherFormat kOtherFormats[] = {
    {4, "ftypavif", "an AVIF image"},
    {4, "ftypavis", "an AVIF image"},
    {4, "ftyphei", "a HEIC image"},  // heic, heix, heim, heis
    {4, "ftyphev", "a HEIC image"},
    {4, "ftypmif1", "a HEIC image"},
    {4, "ftypmsf1", "a HEIC image"},
    {4, "ftypcrx", "a Canon raw image"},
    {4, "ftyp", "a video (MP4 or MOV)"},
    {8, "WEBP", "a WebP image"},
    {0, "RIFF", "a RIFF file (WebP, AVI or WAV)"},
    {0, "GIF8", "a GIF image"},
    {0, "BM", "a BMP image"},
    {0, "II*\0"sv, "a TIFF or raw image"},
    {0, "MM\0*"sv, "a TIFF or raw image"},
    {0, "\0\0\0\x0CJXL "sv, "a JPEG XL image"},
    {0, "\xFF\x0A", "a JPEG XL image"},
    {0, "\0\0\0\x0CjP  "sv, "a JPEG 2000 image"},
    {0, "\xFF\x4F\xFF\x51", "a JPEG 2000 image"},
    {0, "8BPS", "a Photoshop image"},
    {0, "P5", "a PGM image"},
    {0, "P6", "a PPM image"},
    {0, "\0\0\1\0"sv, "an icon (ICO)"},
    {0, "\0\5\x16\7"sv, "an AppleDouble file of macOS"},
    {0, "%PDF", "a PDF"},
    {0, "PK\3\4", "a ZIP archive"},
    {0, "\x1F\x8B", "a gzip archive"},
    {0, "{", "JSON"},
};

// Recognises HTML, XML and SVG by their first characters, after blanks and a byte order mark.
std::string name_markup(std::span<const std::uint8_t> bytes) {
  if (starts_with(bytes, "\xEF\xBB\xBF")) bytes = bytes.subspan(3);
  std::string text;
  for (const std::uint8_t byte : bytes) {
    const bool is_blank = byte == ' ' || (byte >= '\t' && byte <= '\r');
    if (!is_blank || !text.empty()) text += in_lower_case(static_cast<char>(byte));
    if (text.size() == 9) break;
  }
  if (!text.starts_with('<')) return "";
  if (text.starts_with("<svg")) return "is an SVG drawing";
  if (text.starts_with("<?xml")) return "is an XML file";
  const bool is_page = text.starts_with("<html") || text.starts_with("<!doctype") ||
                       text.starts_with("<head") || text.starts_with("<body");
  return is_page ? "is an HTML page, which a server may send instead of a file" : "is HTML or XML";
}

constexpr std::ptrdiff_t kMostPointer = 1024;  // bytes, by the specification of Git LFS

// Says what the file is instead of a JPEG or PNG.
std::string name_other_format(std::span<const std::uint8_t> bytes) {
  const std::string start(
      bytes.begin(), bytes.begin() + std::min<std::ptrdiff_t>(kMostPointer, std::ssize(bytes)));
  if (start.starts_with("version http") && start.find("\noid sha256:") != std::string::npos) {
    return "is a Git LFS pointer; git lfs pull fetches the image";
  }
  if (start.starts_with("/annex/objects/")) {
    return "is a git-annex pointer; git annex get fetches the image";
  }
  std::string what = name_markup(bytes);
  for (const OtherFormat& format : kOtherFormats) {
    if (!what.empty()) break;
    if (bytes.size() > format.at && starts_with(bytes.subspan(format.at), format.mark)) {
      what = std::string("is ") + format.what;
    }
  }
  return (what.empty() ? "is not an image" : what) + "; only JPEG and PNG are read";
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
    throw BadImage(name_other_format(bytes));
  }
  if (!header) return {};
  if (header->width == 0 || header->height == 0) {
    throw BadImage(fmt::format("says that it has {}x{} pixels", header->width, header->height));
  }
  if (header->width > kMostSide || header->height > kMostSide) {
    throw BadImage(fmt::format("says that it has {}x{} pixels; the limit of a side is {}",
                               header->width, header->height, kMostSide));
  }
  if (std::uint64_t{header->width} * header->height > kMostPixels) {
    throw BadImage(fmt::format("says that it has {}x{} pixels; the limit is {}", header->width,
                               header->height, kMostPixels));
  }
  return header;
}

void check_held_memory(const char* what, std::uint64_t held_bytes, std::uint64_t file_bytes) {
  if (may_hold(held_bytes, file_bytes)) return;
  throw BadImage(fmt::format("is {} and takes {} bytes of memory; a file of {} bytes may take {}",
                             what, held_bytes, file_bytes,
                             kHeldAnyway + kHeldPerByte * file_bytes));
}

void decode_rows(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                 std::uint32_t denominator, const PixelBox& wanted, RowSink& sink) {
  const std::uint32_t width = scaled_size(header.width, denominator);
  const std::uint32_t height = scaled_size(header.height, denominator);
  DP_ASSERT(wanted.width > 0 && wanted.height > 0 && wanted.x + wanted.width <= width &&
                wanted.y + wanted.height <= height,
            "a crop of {}x{} pixels at {}, {} does not fit an image of {}x{} pixels", wanted.width,
            wanted.height, wanted.x, wanted.y, width, height);
  if (header.format == ImageFormat::jpeg) {
    jpeg::decode(bytes, header, denominator, wanted, sink);
  } else {
    DP_ASSERT(denominator == 1, "a PNG cannot be decoded at 1/{} of its size", denominator);
    png::decode(bytes, header, wanted, sink);
  }
}

void decode_image(std::span<const std::uint8_t> bytes, const ImageHeader& header,
                  std::uint32_t denominator, const PixelBox& wanted, DecodedImage& image) {
  class Keeper final : public RowSink {
   public:
    explicit Keeper(DecodedImage& image) : image_(image) {}
    void take_row(const PixelBox& box, std::uint32_t y, const std::uint8_t* pixels) override {
      const std::size_t row_bytes = std::size_t{4} * box.width;
      image_.box = box;
      image_.pixels.resize(row_bytes * box.height);
      std::copy_n(pixels, row_bytes, image_.pixels.data() + row_bytes * (y - box.y));
    }

   private:
    DecodedImage& image_;
  } keeper(image);
  decode_rows(bytes, header, denominator, wanted, keeper);
}

}  // namespace dp
