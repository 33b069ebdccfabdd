// Makes JPEG and PNG files for tests, with the libraries themselves.
#pragma once

#include <cstdio>

#include <jpeglib.h>
#include <png.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace dp {

using Bytes = std::vector<std::uint8_t>;

// Draws pixels that are smooth in colour, so that JPEG nearly keeps them, and different for every
// seed. `channels` bytes per pixel.
inline Bytes draw_pixels(std::uint32_t width, std::uint32_t height, int channels,
                         std::uint32_t seed) {
  Bytes pixels;
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const std::uint32_t wave =
            (x * (3 + static_cast<std::uint32_t>(c)) + y * 5 + seed * 37) % 256;
        const std::uint32_t up = wave < 128 ? 2 * wave : 2 * (255 - wave);
        pixels.push_back(static_cast<std::uint8_t>(up));
      }
    }
  }
  return pixels;
}

struct JpegKind {
  int channels = 3;  // 1 grey, 3 RGB, 4 CMYK
  int quality = 90;
  bool is_progressive = false;
  bool is_ycck = false;     // with channels 4, and Adobe's inverted values
  int chroma_sampling = 2;  // 2: 4:2:0; 1: 4:4:4
};

inline Bytes make_jpeg(std::uint32_t width, std::uint32_t height, const Bytes& pixels,
                       const JpegKind& kind = {}) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = width;
  info.image_height = height;
  info.input_components = kind.channels;
  info.in_color_space = kind.channels == 1   ? JCS_GRAYSCALE
                        : kind.channels == 3 ? JCS_RGB
                                             : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (kind.is_ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (kind.channels == 3) {
    info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = kind.chroma_sampling;
  }
  if (kind.is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = std::size_t{width} * static_cast<std::size_t>(kind.channels);
  while (info.next_scanline < height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.data() + row_bytes * info.next_scanline);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

inline Bytes make_jpeg(std::uint32_t width, std::uint32_t height, std::uint32_t seed) {
  return make_jpeg(width, height, draw_pixels(width, height, 3, seed));
}

struct PngKind {
  int colour = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  bool is_interlaced = false;
  bool has_transparent_colour = false;  // a tRNS chunk
};

// `rows` holds each row as PNG stores it.
inline Bytes make_png(std::uint32_t width, std::uint32_t height, const Bytes& rows,
                      const PngKind& kind = {}) {
  Bytes bytes;
  png_structp writer = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(writer);
  png_set_write_fn(
      writer, &bytes,
      [](png_structp p, png_bytep data, std::size_t count) {
        auto* out = static_cast<Bytes*>(png_get_io_ptr(p));
        out->insert(out->end(), data, data + count);
      },
      nullptr);
  png_set_IHDR(writer, info, width, height, kind.bits, kind.colour,
               kind.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (kind.colour == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette;
    for (int i = 0; i < 1 << kind.bits; ++i) {
      const auto byte = static_cast<png_byte>(i);
      palette.push_back({byte, static_cast<png_byte>(255 - byte), static_cast<png_byte>(byte / 2)});
    }
    png_set_PLTE(writer, info, palette.data(), static_cast<int>(palette.size()));
  }
  if (kind.has_transparent_colour) {
    png_byte alpha[1] = {0};
    png_color_16 colour = {};
    png_set_tRNS(writer, info, alpha, 1, &colour);
  }
  png_write_info(writer, info);
  if (kind.is_interlaced) png_set_interlace_handling(writer);
  std::vector<png_bytep> pointers;
  for (std::uint32_t y = 0; y < height; ++y) {
    pointers.push_back(const_cast<png_bytep>(rows.data() + rows.size() / height * y));
  }
  png_write_image(writer, pointers.data());
  png_write_end(writer, info);
  png_destroy_write_struct(&writer, &info);
  return bytes;
}

inline Bytes make_png(std::uint32_t width, std::uint32_t height, std::uint32_t seed) {
  return make_png(width, height, draw_pixels(width, height, 3, seed));
}

}  // namespace dp
