// PNG by libpng.
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>
#include <zlib.h>

#include "io/images/encoded_image.hpp"

namespace dp::png {
namespace {

constexpr const char* kInterlaced = "an interlaced PNG";

struct Job {
  std::span<const std::uint8_t> bytes;
  const ImageHeader& header;
  PixelBox wanted;
  RowSink& sink;
  std::vector<std::uint8_t>& row;    // of the whole width
  std::vector<std::uint8_t>& whole;  // of an interlaced image
  std::size_t at = 0;
  bool has_other_size = false, has_other_layout = false;
  std::uint64_t held_bytes = 0;  // for the whole image
  char message[256] = {};
};

// libpng's error callback. It must not return.
[[noreturn]] void leave(png_structp reader, png_const_charp why) {
  auto* job = static_cast<Job*>(png_get_error_ptr(reader));
  std::snprintf(job->message, sizeof job->message, "%s", why);
  png_longjmp(reader, 1);
}

void pass_over(png_structp, png_const_charp) {}

void give_bytes(png_structp reader, png_bytep target, std::size_t count) {
  auto* job = static_cast<Job*>(png_get_io_ptr(reader));
  if (count > job->bytes.size() - job->at) png_error(reader, "it is cut off");
  std::memcpy(target, job->bytes.data() + job->at, count);
  job->at += count;
}

// Returns false if libpng finds an error. libpng then leaves this function by longjmp(), so the
// function must hold no object with a destructor.
bool run(Job& job, png_structp reader, png_infop info) {
  if (setjmp(png_jmpbuf(reader)) != 0) return false;
  png_set_read_fn(reader, &job, give_bytes);
  png_set_user_limits(reader, job.header.width, job.header.height);
  png_set_chunk_cache_max(reader, 128);
  png_set_chunk_malloc_max(reader, 1 << 20);
  // Do not unpack what the pixels do not need: profiles, texts, ...
  png_set_keep_unknown_chunks(reader, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(reader, info);
  const std::uint32_t width = png_get_image_width(reader, info);
  const std::uint32_t height = png_get_image_height(reader, info);
  if (width != job.header.width || height != job.header.height) {
    job.has_other_size = true;
    return true;
  }
  png_set_expand(reader);  // palettes and 1, 2, 4 bits to 8 bits, a transparent colour to alpha
  png_set_strip_16(reader);
  png_set_gray_to_rgb(reader);
  png_set_filler(reader, 0xFF, PNG_FILLER_AFTER);  // if there is no alpha
  const int passes = png_set_interlace_handling(reader);
  png_read_update_info(reader, info);
  const std::size_t row_bytes = std::size_t{4} * width;
  if (png_get_rowbytes(reader, info) != row_bytes) {
    job.has_other_layout = true;
    return true;
  }
  const PixelBox box = {.x = 0, .y = job.wanted.y, .width = width, .height = job.wanted.height};
  const std::uint32_t bottom = box.y + box.height;
  if (passes == 1) {
    for (std::uint32_t y = 0; y < height; ++y) {
      png_read_row(reader, job.row.data(), nullptr);
      if (y >= box.y && y < bottom) job.sink.take_row(box, y, job.row.data());
    }
  } else {
    job.held_bytes = std::uint64_t{row_bytes} * height;
    if (!may_hold(job.held_bytes, job.bytes.size())) return true;
    job.whole.resize(row_bytes * height);
    for (int pass = 0; pass < passes; ++pass) {
      for (std::uint32_t y = 0; y < height; ++y) {
        png_read_row(reader, job.whole.data() + row_bytes * y, nullptr);
      }
    }
    for (std::uint32_t y = box.y; y < bottom; ++y) {
      job.sink.take_row(box, y, job.whole.data() + row_bytes * y);
    }
  }
  // All pixels are there and their checksums are correct. The rest of the file does not affect them
  // and may be missing (see with_last_checksum).
  return true;
}

std::uint32_t long_word(std::span<const std::uint8_t> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(bytes[at]) << 24 |
         static_cast<std::uint32_t>(bytes[at + 1]) << 16 |
         static_cast<std::uint32_t>(bytes[at + 2]) << 8 | bytes[at + 3];
}

// A file that ends within the checksum of its last IDAT chunk has all its pixels. Returns a copy of
// this file with the complete checksum. For any other file, returns an empty vector.
std::vector<std::uint8_t> with_last_checksum(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kFirst = 8;
  for (std::uint64_t at = kFirst; at + 8 <= bytes.size();) {
    const auto start = static_cast<std::size_t>(at);
    const std::uint64_t end = at + 8 + long_word(bytes, start);  // of the data
    at = end + 4;
    if (end > bytes.size() || at <= bytes.size()) continue;
    if (std::memcmp(bytes.data() + start + 4, "IDAT", 4) != 0) break;
    std::vector<std::uint8_t> whole(bytes.begin(),
                                    bytes.begin() + static_cast<std::ptrdiff_t>(end));
    const uLong sum = crc32_z(0, whole.data() + start + 4, whole.size() - start - 4);
    for (const int shift : {24, 16, 8, 0}) whole.push_back(static_cast<std::uint8_t>(sum >> shift));
    return whole;
  }
  return {};
}

}  // namespace

// Reads the first chunk. Then reads the chunks up to the pixels, because they tell whether the
// image is transparent or animated.
std::optional<ImageHeader> read_header(std::span<const std::uint8_t> bytes,
                                       std::uint64_t file_bytes) {
  const auto more = [&](std::uint64_t needed) -> std::optional<ImageHeader> {
    if (needed > file_bytes) throw BadImage("is cut off in its header");
    return {};
  };
  constexpr std::size_t kFirst = 8, kAfterFirst = 33;
  if (bytes.size() < kAfterFirst) return more(kAfterFirst);
  if (std::memcmp(bytes.data() + kFirst + 4, "IHDR", 4) != 0 || long_word(bytes, kFirst) != 13) {
    throw BadImage("has a damaged PNG header");
  }
  const std::uint8_t bits = bytes[24], colour = bytes[25];
  ImageHeader header = {.format = ImageFormat::png,
                        .width = long_word(bytes, 16),
                        .height = long_word(bytes, 20),
                        .kinds = {.is_grey = colour == 0 || colour == 4,
                                  .has_16_bits = bits == 16,
                                  .has_palette = colour == 3,
                                  .has_alpha = colour == 4 || colour == 6}};
  const bool is_interlaced = bytes[28] != 0;
  const std::uint64_t pixels = std::uint64_t{header.width} * header.height;
  if (is_interlaced && pixels <= kMostPixels) {
    check_held_memory(kInterlaced, 4 * pixels, file_bytes);
  }
  for (std::uint64_t at = kAfterFirst;;) {
    if (at + 8 > bytes.size()) return more(at + 8);
    const auto start = static_cast<std::size_t>(at);
    const auto is_chunk = [&](const char* name) {
      return std::memcmp(bytes.data() + start + 4, name, 4) == 0;
    };
    if (is_chunk("IDAT")) return header;
    if (is_chunk("tRNS")) header.kinds.has_alpha = true;
    if (is_chunk("acTL")) header.kinds.is_animated = true;
    at += std::uint64_t{12} + long_word(bytes, start);
  }
}

void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const PixelBox& wanted,
            RowSink& sink) {
  const std::vector<std::uint8_t> completed = with_last_checksum(bytes);
  if (!completed.empty()) bytes = completed;
  std::vector<std::uint8_t> row(std::size_t{4} * header.width), whole;
  Job job = {
      .bytes = bytes, .header = header, .wanted = wanted, .sink = sink, .row = row, .whole = whole};
  struct Reader {
    png_structp reader;
    png_infop info;
    ~Reader() { png_destroy_read_struct(&reader, &info, nullptr); }
  } png = {png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, leave, pass_over), nullptr};
  if (png.reader != nullptr) png.info = png_create_info_struct(png.reader);
  if (png.info == nullptr) throw OutOfMemory("no memory for reading a PNG");
  if (!run(job, png.reader, png.info)) {
    throw BadImage(fmt::format("is a damaged PNG: {}", job.message));
  }
  if (job.has_other_size) throw BadImage("has changed size since the run began");
  check_held_memory(kInterlaced, job.held_bytes, bytes.size());
  if (job.has_other_layout) throw BadImage("is a PNG of an unknown kind");
}

}  // namespace dp::png
