// Tests decoding, cropping and scaling of JPEG and PNG: every kind of image, damage and false
// headers, limits of memory, and Pillow's and torchvision's results.
#include "io/images/encoded_image.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/images/image_crop.hpp"
#include "io/images/resample.hpp"
#include "kernels/base/random.hpp"
#include "tests/io/images/image_files.hpp"

namespace dp {
namespace {

ImageHeader header_of(const Bytes& file) {
  const auto header = read_image_header(file, file.size());
  EXPECT_TRUE(header.has_value());
  return *header;
}

PixelBox whole(const ImageHeader& header, std::uint32_t denominator = 1) {
  return {.width = scaled_size(header.width, denominator),
          .height = scaled_size(header.height, denominator)};
}

// The pixels of a part, without their fourth bytes.
Bytes colours(const DecodedImage& image, const PixelBox& part) {
  Bytes pixels;
  for (std::uint32_t y = part.y; y < part.y + part.height; ++y) {
    for (std::uint32_t x = part.x; x < part.x + part.width; ++x) {
      const std::size_t at =
          4 * (std::size_t{y - image.box.y} * image.box.width + (x - image.box.x));
      pixels.insert(pixels.end(), image.pixels.begin() + static_cast<std::ptrdiff_t>(at),
                    image.pixels.begin() + static_cast<std::ptrdiff_t>(at) + 3);
    }
  }
  return pixels;
}

Bytes decode(const Bytes& file, const PixelBox& part, std::uint32_t denominator = 1) {
  DecodedImage image;
  decode_image(file, header_of(file), denominator, part, image);
  return colours(image, part);
}
Bytes decode(const Bytes& file) { return decode(file, whole(header_of(file))); }

// Why a file is bad; empty if it is not.
std::string complaint(const Bytes& file, const PixelBox* part = nullptr) {
  try {
    const auto header = read_image_header(file, file.size());
    DecodedImage image;
    decode_image(file, header.value(), 1, part != nullptr ? *part : whole(*header), image);
  } catch (const BadImage& error) {
    return error.what();
  }
  return "";
}

int largest_difference(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  }
  return largest;
}

// ---- kinds --------------------------------------------------------------------------------------

TEST(Jpeg, DecodesColourGreyAndProgressive) {
  const Bytes pixels = draw_pixels(50, 37, 3, 1);
  for (const bool is_progressive : {false, true}) {
    const Bytes file = make_jpeg(
        50, 37, pixels, {.quality = 100, .is_progressive = is_progressive, .chroma_sampling = 1});
    const ImageHeader header = header_of(file);
    EXPECT_EQ(header.width, 50u);
    EXPECT_EQ(header.height, 37u);
    EXPECT_FALSE(header.kinds.is_grey);
    EXPECT_LE(largest_difference(decode(file), pixels), 4);
  }
  const Bytes grey = draw_pixels(50, 37, 1, 2);
  const Bytes file = make_jpeg(50, 37, grey, {.channels = 1, .quality = 100});
  EXPECT_TRUE(header_of(file).kinds.is_grey);
  Bytes repeated;
  for (const std::uint8_t value : grey) repeated.insert(repeated.end(), 3, value);
  EXPECT_LE(largest_difference(decode(file), repeated), 3);
}

// As Pillow: Adobe's values are inverted, and RGB = (255 - ink)(255 - black) / 255.
TEST(Jpeg, TurnsCmykAndYcckIntoRgb) {
  const Bytes cmyk = draw_pixels(24, 16, 4, 3);
  Bytes expected;
  for (std::size_t i = 0; i < cmyk.size(); i += 4) {
    for (std::size_t c = 0; c < 3; ++c) {
      expected.push_back(static_cast<std::uint8_t>(cmyk[i + c] * cmyk[i + 3] / 255));
    }
  }
  for (const bool is_ycck : {false, true}) {
    const Bytes file = make_jpeg(24, 16, cmyk, {.channels = 4, .quality = 100, .is_ycck = is_ycck});
    EXPECT_TRUE(header_of(file).kinds.is_cmyk);
    EXPECT_LE(largest_difference(decode(file), expected), 24) << is_ycck;
  }
}

TEST(Png, DecodesEveryKind) {
  const std::uint32_t width = 11, height = 6;
  const Bytes rgb = draw_pixels(width, height, 3, 4);
  for (const bool is_interlaced : {false, true}) {
    EXPECT_EQ(decode(make_png(width, height, rgb, {.is_interlaced = is_interlaced})), rgb);
    // 16 bits: the upper byte.
    Bytes deep, alpha, grey_alpha, grey_of_alpha;
    for (std::size_t i = 0; i < rgb.size(); ++i) {
      deep.push_back(rgb[i]);
      deep.push_back(static_cast<std::uint8_t>(i * 31));
      alpha.push_back(rgb[i]);
      if (i % 3 == 2) alpha.push_back(static_cast<std::uint8_t>(i));
      if (i % 3 == 0) {
        grey_alpha.push_back(rgb[i]);
        grey_alpha.push_back(7);
        grey_of_alpha.insert(grey_of_alpha.end(), 3, rgb[i]);
      }
    }
    const Bytes of_16 = make_png(width, height, deep, {.bits = 16, .is_interlaced = is_interlaced});
    EXPECT_EQ(decode(of_16), rgb);
    EXPECT_TRUE(header_of(of_16).kinds.has_16_bits);
    const Bytes with_alpha = make_png(
        width, height, alpha, {.colour = PNG_COLOR_TYPE_RGB_ALPHA, .is_interlaced = is_interlaced});
    EXPECT_EQ(decode(with_alpha), rgb);
    EXPECT_TRUE(header_of(with_alpha).kinds.has_alpha);
    const Bytes grey =
        make_png(width, height, grey_alpha,
                 {.colour = PNG_COLOR_TYPE_GRAY_ALPHA, .is_interlaced = is_interlaced});
    EXPECT_EQ(decode(grey), grey_of_alpha);
    EXPECT_TRUE(header_of(grey).kinds.is_grey);
    for (const bool has_transparent_colour : {false, true}) {
      const Bytes file = make_png(
          width, height, rgb,
          {.is_interlaced = is_interlaced, .has_transparent_colour = has_transparent_colour});
      EXPECT_EQ(header_of(file).kinds.has_alpha, has_transparent_colour);
      EXPECT_EQ(decode(file), rgb);
    }
  }
}

TEST(Png, DecodesPalettesAndFewBits) {
  for (const int bits : {1, 2, 4, 8}) {
    for (const int colour : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
      for (const bool has_transparent_colour : {false, true}) {
        const std::uint32_t width = 13, height = 5;
        const std::size_t row_bytes = (width * static_cast<std::size_t>(bits) + 7) / 8;
        Bytes rows(row_bytes * height), expected;
        for (std::uint32_t y = 0; y < height; ++y) {
          for (std::uint32_t x = 0; x < width; ++x) {
            const std::uint32_t value = (x * 7 + y * 3) % (1u << bits);
            const std::size_t bit = x * static_cast<std::size_t>(bits);
            rows[y * row_bytes + bit / 8] |=
                static_cast<std::uint8_t>(value << (8 - static_cast<std::size_t>(bits) - bit % 8));
            if (colour == PNG_COLOR_TYPE_GRAY) {
              expected.insert(expected.end(), 3,
                              static_cast<std::uint8_t>(value * 255 / ((1u << bits) - 1)));
            } else {
              expected.push_back(static_cast<std::uint8_t>(value));
              expected.push_back(static_cast<std::uint8_t>(255 - value));
              expected.push_back(static_cast<std::uint8_t>(value / 2));
            }
          }
        }
        const Bytes file = make_png(
            width, height, rows,
            {.colour = colour, .bits = bits, .has_transparent_colour = has_transparent_colour});
        EXPECT_EQ(decode(file), expected) << bits << " bits, colour " << colour;
        EXPECT_EQ(header_of(file).kinds.has_palette, colour == PNG_COLOR_TYPE_PALETTE);
      }
    }
  }
}

TEST(Png, AnAnimationIsItsFirstPicture) {
  const Bytes rgb = draw_pixels(5, 4, 3, 1);
  Bytes file = make_png(5, 4, rgb);
  // An acTL chunk after the header; its checksum may be wrong, since it is never needed.
  Bytes chunk = {0, 0, 0, 8, 'a', 'c', 'T', 'L', 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4};
  file.insert(file.begin() + 33, chunk.begin(), chunk.end());
  EXPECT_TRUE(header_of(file).kinds.is_animated);
  EXPECT_EQ(decode(file), rgb);
}

// ---- parts and sizes ----------------------------------------------------------------------------

// A part that is cut out while decoding equals that part of the whole image, bit for bit.
TEST(Decoding, APartIsThePartOfTheWhole) {
  const CounterRng rng(1, RandomStream::test);
  std::uint64_t draw = 0;
  for (const bool is_progressive : {false, true}) {
    for (const int sampling : {1, 2}) {
      const Bytes file =
          make_jpeg(301, 187, draw_pixels(301, 187, 3, 5),
                    {.quality = 80, .is_progressive = is_progressive, .chroma_sampling = sampling});
      for (const std::uint32_t d : {1u, 2u, 4u, 8u}) {
        const ImageHeader header = header_of(file);
        DecodedImage all;
        decode_image(file, header, d, whole(header, d), all);
        const std::uint32_t width = whole(header, d).width, height = whole(header, d).height;
        for (int i = 0; i < 25; ++i) {
          PixelBox part;
          part.x = static_cast<std::uint32_t>(rng.below(width, draw++));
          part.y = static_cast<std::uint32_t>(rng.below(height, draw++));
          part.width = 1 + static_cast<std::uint32_t>(rng.below(width - part.x, draw++));
          part.height = 1 + static_cast<std::uint32_t>(rng.below(height - part.y, draw++));
          ASSERT_EQ(decode(file, part, d), colours(all, part))
              << part.width << "x" << part.height << " at " << part.x << ", " << part.y << " of 1/"
              << d << ", sampling " << sampling << (is_progressive ? ", progressive" : "");
        }
      }
    }
  }
  const Bytes file = make_png(31, 17, 5);
  DecodedImage all;
  decode_image(file, header_of(file), 1, whole(header_of(file)), all);
  const PixelBox part = {.x = 3, .y = 9, .width = 20, .height = 8};
  EXPECT_EQ(decode(file, part), colours(all, part));
}

// ---- oddities that say nothing about pixels
// ------------------------------------------------------

std::size_t find_bytes(const Bytes& file, const Bytes& part, std::size_t from = 0) {
  const auto at = std::search(file.begin() + static_cast<std::ptrdiff_t>(from), file.end(),
                              part.begin(), part.end());
  EXPECT_NE(at, file.end());
  return static_cast<std::size_t>(at - file.begin());
}

void insert(Bytes& file, std::size_t at, const Bytes& part) {
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
}

// The offset of the scan header's fields that say which coefficients the scan has.
std::size_t scan_fields(const Bytes& jpeg, std::size_t scan) {
  return scan + 5 + std::size_t{2} * jpeg[scan + 4];
}

// A JPEG's scans, each with the tables before it: where they begin and where the last one ends.
std::vector<std::size_t> scan_starts(const Bytes& jpeg) {
  std::vector<std::size_t> starts;
  std::size_t at = 2, begin = 0;
  for (; jpeg[at + 1] != 0xD9;) {
    const std::uint8_t marker = jpeg[at + 1];
    if (begin == 0 && marker == 0xC4) begin = at;
    at += std::size_t{2} + static_cast<std::size_t>(jpeg[at + 2] << 8 | jpeg[at + 3]);
    if (marker != 0xDA) continue;
    while (jpeg[at] != 0xFF || jpeg[at + 1] == 0) ++at;
    starts.push_back(begin);
    begin = at;
  }
  starts.push_back(at);
  return starts;
}

// The warnings of libjpeg after which every decoder has the same pixels.
TEST(Jpeg, WarningsThatSayNothingAboutPixelsArePassedOver) {
  const Bytes good = make_jpeg(50, 37, draw_pixels(50, 37, 3, 1), {.quality = 85});
  const Bytes pixels = decode(good);
  const std::size_t scan = find_bytes(good, {0xFF, 0xDA});
  // A sequential scan has all coefficients, whatever its header says; some phones write 0, 0, 0.
  for (const Bytes& fields : {Bytes{0, 0, 0}, Bytes{1, 5, 0x13}, Bytes{63, 0, 0xFF}}) {
    Bytes file = good;
    std::copy(fields.begin(), fields.end(),
              file.begin() + static_cast<std::ptrdiff_t>(scan_fields(good, scan)));
    EXPECT_EQ(complaint(file), "");
    EXPECT_EQ(decode(file), pixels);
    const PixelBox part = {.x = 20, .y = 11, .width = 9, .height = 7};
    EXPECT_EQ(decode(file, part), decode(good, part));
  }
  Bytes file = good;  // superfluous bytes before a marker
  insert(file, find_bytes(good, {0xFF, 0xDB}), {0, 1, 2});
  EXPECT_EQ(decode(file), pixels);
  file = good;  // JFIF of version 9
  file[find_bytes(good, {'J', 'F', 'I', 'F', 0}) + 5] = 9;
  EXPECT_EQ(decode(file), pixels);
  file = good;  // Adobe's segment with colours of the unknown number 7
  insert(file, 2, {0xFF, 0xEE, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 7});
  EXPECT_EQ(decode(file), pixels);
  file = good;  // the first of two pieces of a colour profile
  insert(file, 2,
         {0xFF, 0xE2, 0, 18, 'I', 'C', 'C', '_', 'P', 'R', 'O', 'F', 'I', 'L', 'E', 0, 1, 2, 1, 1});
  EXPECT_EQ(decode(file), pixels);
  file = good;
  insert(file, good.size(), {'m', 'o', 'r', 'e', 0xFF, 0xD8});
  EXPECT_EQ(decode(file), pixels);
}

// As Pillow, which takes the values of CMYK as inverted also without Adobe's segment.
TEST(Jpeg, CmykNeedsNoSegmentOfAdobe) {
  for (const bool is_progressive : {false, true}) {
    const Bytes good = make_jpeg(24, 16, draw_pixels(24, 16, 4, 3),
                                 {.channels = 4, .is_progressive = is_progressive});
    const auto segment = good.begin() + static_cast<std::ptrdiff_t>(find_bytes(good, {0xFF, 0xEE}));
    Bytes file(good.begin(), segment);
    file.insert(file.end(), segment + 16, good.end());
    EXPECT_TRUE(header_of(file).kinds.is_cmyk);
    EXPECT_EQ(decode(file), decode(good));
  }
}

// The scans of a progressive JPEG may come in any order; none may be missing.
TEST(Jpeg, ScansInAnotherOrderAreReadAndLostOnesAreReported) {
  const Bytes good =
      make_jpeg(50, 37, draw_pixels(50, 37, 3, 1), {.quality = 95, .is_progressive = true});
  const std::vector<std::size_t> starts = scan_starts(good);
  ASSERT_EQ(starts.size(), 11u);
  const auto joined = [&](const std::vector<std::size_t>& order) {
    Bytes file(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(starts[0]));
    for (const std::size_t scan : order) {
      file.insert(file.end(), good.begin() + static_cast<std::ptrdiff_t>(starts[scan]),
                  good.begin() + static_cast<std::ptrdiff_t>(starts[scan + 1]));
    }
    insert(file, file.size(), {0xFF, 0xD9});
    return file;
  };
  // libjpeg's script: DC, the first AC scans (1 to 4), and refinements, the last of DC (6).
  EXPECT_EQ(joined({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), good);
  for (const std::vector<std::size_t>& order :
       {std::vector<std::size_t>{1, 0, 2, 3, 4, 5, 6, 7, 8, 9},
        {1, 2, 3, 4, 5, 0, 6, 7, 8, 9},
        {0, 1, 2, 3, 4, 5, 7, 8, 9, 6}}) {
    EXPECT_EQ(complaint(joined(order)), "");
    EXPECT_EQ(decode(joined(order)), decode(good));
  }
  for (const std::vector<std::size_t>& lost : {std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9},
                                               {1, 0, 2, 3, 4, 6, 7, 8, 9},
                                               {1, 0, 2, 3, 4, 5, 6, 7, 8}}) {
    EXPECT_NE(complaint(joined(lost)).find("is a damaged JPEG"), std::string::npos);
  }
}

// The end of a PNG says nothing about its pixels.
TEST(Png, WhatFollowsThePixelsNeedNotBeThere) {
  for (const bool is_interlaced : {false, true}) {
    const Bytes rgb = draw_pixels(40, 30, 3, 4);
    const Bytes good = make_png(40, 30, rgb, {.is_interlaced = is_interlaced});
    const std::size_t end = find_bytes(good, {'I', 'E', 'N', 'D'}) - 4;
    ASSERT_EQ(end + 12, good.size());
    const auto first = [&](std::size_t length) {
      return Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    };
    // From within the checksum of the pixels on.
    for (std::size_t length = end - 4; length < good.size(); ++length) {
      EXPECT_EQ(complaint(first(length)), "");
      EXPECT_EQ(decode(first(length)), rgb);
    }
    // A text of which half is there, and one with a wrong checksum.
    Bytes file = first(end);
    insert(file, end, {0, 0, 0, 9, 't', 'E', 'X', 't', 'a'});
    EXPECT_EQ(decode(file), rgb);
    file = good;
    const Bytes text = {0, 0, 0, 3, 't', 'E', 'X', 't', 'a', 0, 'b', 1, 2, 3, 4};
    insert(file, end, text);
    insert(file, 33, text);
    EXPECT_EQ(decode(file), rgb);
    // But not less than the pixels, and not with another checksum.
    Bytes wrong = good;
    wrong[end - 1] ^= 1;
    EXPECT_NE(complaint(wrong), "");
    for (std::size_t length = 40; length < end - 4; ++length) {
      EXPECT_NE(complaint(first(length)).find("cut off"), std::string::npos) << length;
    }
  }
}

// ---- bad files ----------------------------------------------------------------------------------

TEST(BadImages, AreNamedByWhatIsWrong) {
  const auto expect = [](const Bytes& file, const std::string& part) {
    EXPECT_NE(complaint(file).find(part), std::string::npos) << complaint(file);
  };
  expect({}, "is empty");
  expect({'G', 'I', 'F', '8', '9', 'a', 0, 0}, "is a GIF image; JPEG and PNG are read");
  expect({'h', 'e', 'l', 'l', 'o'}, "is no image");
  expect({0xFF, 0xD8, 0xFF, 0xE0, 0, 16}, "is cut off in its header");
  expect({0xFF, 0xD8, 0xFF, 0xD9, 0, 0}, "is a JPEG without a frame");
  Bytes jpeg = make_jpeg(40, 30, 1);
  jpeg.resize(jpeg.size() / 2);
  expect(jpeg, "is a damaged JPEG");
  Bytes png = make_png(40, 30, 1);
  png.resize(png.size() / 2);
  expect(png, "is a damaged PNG: it is cut off");
  png = make_png(40, 30, 1);
  png[60] ^= 1;
  expect(png, "is a damaged PNG");
}

// Files of other kinds that are often called .jpg.
TEST(BadImages, OtherFormatsAreNamed) {
  const auto named = [](std::string_view text) {
    return complaint(Bytes(text.begin(), text.end()));
  };
  using namespace std::string_view_literals;
  const std::string read = "; JPEG and PNG are read";
  EXPECT_EQ(named("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234\n"),
            "is a Git LFS pointer; git lfs pull fetches the image");
  EXPECT_EQ(named("version https://hawser.example/spec/v1\next-0-x sha256:1\noid sha256:0\nsize 1"),
            "is a Git LFS pointer; git lfs pull fetches the image");
  EXPECT_EQ(named("/annex/objects/SHA256E-s1234--0123.jpg\n"),
            "is a git-annex pointer; git annex get fetches the image");
  EXPECT_EQ(named("\0\0\0\x18"
                  "ftypheic\0\0\0\0mif1heic"sv),
            "is a HEIC image" + read);
  EXPECT_EQ(named("\0\0\0\x18"
                  "ftypmif1\0\0\0\0"sv),
            "is a HEIC image" + read);
  EXPECT_EQ(named("\0\0\0\x1C"
                  "ftypavif\0\0\0\0"sv),
            "is an AVIF image" + read);
  EXPECT_EQ(named("\0\0\0\x18"
                  "ftypisom\0\0\2\0"sv),
            "is a video (MP4 or MOV)" + read);
  EXPECT_EQ(named("RIFF\x24\0\0\0WEBPVP8 "sv), "is a WebP image" + read);
  EXPECT_EQ(named("BM6\0\0\0"sv), "is a BMP image" + read);
  EXPECT_EQ(named("II*\0\x08\0\0\0"sv), "is a TIFF or raw image" + read);
  EXPECT_EQ(named("\0\5\x16\7\0\2\0\0Mac OS X"sv), "is an AppleDouble file of macOS" + read);
  EXPECT_EQ(named("\xEF\xBB\xBF\r\n <!DOCTYPE html>"),
            "is an HTML page, which a server may send instead of a file" + read);
  EXPECT_EQ(named("<Html lang"),
            "is an HTML page, which a server may send instead of a file" + read);
  EXPECT_EQ(named("<?xml version='1.0'?><Error>"), "is an XML file" + read);
  EXPECT_EQ(named("<svg xmlns"), "is an SVG drawing" + read);
  EXPECT_EQ(named("{\"error\": 403}"), "is JSON" + read);
  EXPECT_EQ(named("version 2"), "is no image" + read);
  EXPECT_EQ(named("  "), "is no image" + read);
}

// Overwrites the size in the file's header.
void write_size(Bytes& file, std::uint32_t width, std::uint32_t height) {
  if (file[0] == 0x89) {
    for (int i = 0; i < 4; ++i) {
      file[static_cast<std::size_t>(16 + i)] = static_cast<std::uint8_t>(width >> (24 - 8 * i));
      file[static_cast<std::size_t>(20 + i)] = static_cast<std::uint8_t>(height >> (24 - 8 * i));
    }
    return;
  }
  for (std::size_t at = 2; at + 9 < file.size(); ++at) {
    if (file[at] != 0xFF || (file[at + 1] != 0xC0 && file[at + 1] != 0xC2)) continue;
    file[at + 5] = static_cast<std::uint8_t>(height >> 8);
    file[at + 6] = static_cast<std::uint8_t>(height);
    file[at + 7] = static_cast<std::uint8_t>(width >> 8);
    file[at + 8] = static_cast<std::uint8_t>(width);
    return;
  }
}

TEST(BadImages, AHeaderThatLiesTakesNoMemory) {
  Bytes jpeg = make_jpeg(40, 30, 1), png = make_png(40, 30, 1);
  write_size(jpeg, 65'500, 65'500);
  write_size(png, 2'000'000'000, 2'000'000'000);
  EXPECT_NE(complaint(jpeg).find("says that it has 65500x65500 pixels; the limit is 67108864"),
            std::string::npos)
      << complaint(jpeg);
  EXPECT_NE(complaint(png).find("the limit of a side is 65535"), std::string::npos)
      << complaint(png);
  write_size(png, 1 << 26, 1);
  EXPECT_NE(complaint(png).find("the limit of a side is 65535"), std::string::npos)
      << complaint(png);
  write_size(jpeg, 0, 30);
  EXPECT_NE(complaint(jpeg).find("says that it has 0x30 pixels"), std::string::npos);
  // Within the limit: found by the data that are missing. Only what is wanted takes memory.
  jpeg = make_jpeg(40, 30, 1);
  write_size(jpeg, 8'000, 8'000);
  const PixelBox corner = {.width = 10, .height = 10};
  EXPECT_NE(complaint(jpeg, &corner), "");
}

// Decoders that hold the whole image take no more memory than the file justifies.
TEST(BadImages, MemoryIsBoundedByTheSizeOfTheFile) {
  const std::uint32_t side = 4'200;
  const Bytes rows(std::size_t{(side + 7) / 8} * side);
  const PngKind kind = {.colour = PNG_COLOR_TYPE_GRAY, .bits = 1};
  PngKind interlaced = kind;
  interlaced.is_interlaced = true;
  const PixelBox corner = {.width = 10, .height = 10};
  const Bytes plain = make_png(side, side, rows, kind);
  EXPECT_LT(plain.size(), 10'000u);
  EXPECT_EQ(complaint(plain, &corner), "");
  Bytes whole = make_png(side, side, rows, interlaced);
  EXPECT_NE(complaint(whole, &corner).find("is an interlaced PNG and takes 70560000 bytes"),
            std::string::npos)
      << complaint(whole, &corner);
  // The limit also holds if the header comes from elsewhere, such as a pack.
  ImageHeader header = header_of(plain);
  DecodedImage image;
  EXPECT_THROW(decode_image(whole, header, 1, corner, image), BadImage);
  // In a larger file, the same image is allowed.
  whole.resize(whole.size() + 100'000);
  EXPECT_EQ(complaint(whole, &corner), "");

  for (const bool is_progressive : {false, true}) {
    Bytes jpeg = make_jpeg(40, 30, draw_pixels(40, 30, 1, 1),
                           {.channels = 1, .is_progressive = is_progressive});
    write_size(jpeg, 6'000, 6'000);
    const auto takes = [&] {
      return complaint(jpeg, &corner).find("is a JPEG of several scans and takes 72000000 bytes") !=
             std::string::npos;
    };
    EXPECT_EQ(takes(), is_progressive) << complaint(jpeg, &corner);
    jpeg.resize(jpeg.size() + 100'000);
    EXPECT_FALSE(takes());
  }
}

// Whether a file is bad must not depend on the part that is wanted.
TEST(BadImages, DamageIsFoundWhereverItIs) {
  for (const bool is_progressive : {false, true}) {
    const Bytes good = make_jpeg(96, 80, draw_pixels(96, 80, 3, 9),
                                 {.quality = 85, .is_progressive = is_progressive});
    const PixelBox boxes[] = {{.width = 1, .height = 1},
                              {.x = 40, .y = 30, .width = 20, .height = 20},
                              {.x = 95, .y = 79, .width = 1, .height = 1}};
    std::size_t bad = 0;
    const auto compare = [&](const Bytes& file) {
      try {
        const auto header = read_image_header(file, file.size());
        if (!header || header->width != 96 || header->height != 80) return;
      } catch (const BadImage&) {
        return;
      }
      const bool is_bad = !complaint(file).empty();
      bad += is_bad ? 1 : 0;
      for (const PixelBox& box : boxes) {
        ASSERT_EQ(!complaint(file, &box).empty(), is_bad) << complaint(file);
      }
    };
    for (std::size_t length = 4; length < good.size(); length += 13) {
      Bytes file = good;
      file.resize(length);
      compare(file);
    }
    EXPECT_GT(bad, 20u);
    const CounterRng rng(2, RandomStream::test);
    for (std::uint64_t i = 0; i < 300; ++i) {
      Bytes file = good;
      file[rng.below(file.size(), 2 * i)] = static_cast<std::uint8_t>(rng.bits(2 * i + 1));
      compare(file);
    }
  }
}

// ---- scaling ------------------------------------------------------------------------------------

DecodedImage noisy_image(std::uint32_t width, std::uint32_t height) {
  DecodedImage image;
  image.box = {.width = width, .height = height};
  for (std::uint64_t i = 0; i < std::uint64_t{width} * height * 3; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>((i * 2654435761u >> 7) % 256));
    if (i % 3 == 2) image.pixels.push_back(99);
  }
  return image;
}

std::uint64_t fnv1a(std::span<const std::uint8_t> bytes) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (const std::uint8_t byte : bytes) value = (value ^ byte) * 0x100000001B3u;
  return value;
}

TEST(Resampler, HasPillowsBits) {
  struct Golden {
    std::uint32_t width, height;
    PixelBox box;
    std::uint32_t to_width, to_height;
    std::uint64_t hash;
  };
  // Printed by make_resample_golden.py with Pillow 13.0.
  constexpr Golden kGolden[] = {
      {40, 30, {0, 0, 40, 30}, 8, 8, 0x74F3AACDF3676E9Eu},
      {40, 30, {5, 7, 23, 23}, 32, 32, 0x29AF86802FF73C0Au},
      {7, 5, {0, 0, 7, 5}, 50, 20, 0x102966E388C96CD9u},
      {200, 90, {3, 1, 187, 63}, 33, 47, 0xD42D00E2C8DDEAF9u},
      {64, 64, {0, 0, 64, 64}, 64, 64, 0x0B2F00D60CECDEA5u},
      {1, 1, {0, 0, 1, 1}, 5, 3, 0x9C8831A2F017BEECu},
      {300, 2, {0, 0, 300, 2}, 3, 9, 0xDBACED7B4845BD53u},
  };
  Resampler resampler;
  for (const Golden& golden : kGolden) {
    const DecodedImage image = noisy_image(golden.width, golden.height);
    const std::uint32_t width = golden.to_width, height = golden.to_height;
    Bytes planar(std::size_t{3} * width * height);
    resampler.run(image, {golden.box, width, height, {0, 0, width, height}}, planar);
    EXPECT_EQ(fnv1a(planar), golden.hash)
        << golden.width << "x" << golden.height << " to " << width;
    // A cut has the bits of the whole.
    const PixelBox cut = {width / 3, height / 4, (width + 1) / 2, (height + 1) / 2};
    Bytes part(std::size_t{3} * cut.width * cut.height);
    resampler.run(image, {golden.box, width, height, cut}, part);
    for (std::uint32_t c = 0; c < 3; ++c) {
      for (std::uint32_t y = 0; y < cut.height; ++y) {
        for (std::uint32_t x = 0; x < cut.width; ++x) {
          ASSERT_EQ(part[(c * cut.height + y) * cut.width + x],
                    planar[(c * height + y + cut.y) * width + x + cut.x]);
        }
      }
    }
  }
}

// ---- which part ---------------------------------------------------------------------------------

TEST(ResizedCrop, LiesInTheImageAndHasTheStatedAreasAndRatios) {
  const CounterRng rng(3, RandomStream::test);
  double area_sum = 0, log_ratio_sum = 0;
  constexpr int kDraws = 20'000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const PixelBox box = draw_resized_crop(rng.bits(i), 500, 375);
    ASSERT_LE(box.x + box.width, 500u);
    ASSERT_LE(box.y + box.height, 375u);
    const double area = box.width * box.height / (500.0 * 375.0);
    const double ratio = static_cast<double>(box.width) / box.height;
    ASSERT_GT(area, 0.079);
    ASSERT_GT(ratio, 0.74);
    ASSERT_LT(ratio, 1.35);
    area_sum += area;
    log_ratio_sum += std::log(ratio);
  }
  // torchvision 0.29, 200,000 draws: mean area 0.4333, mean logarithm of the ratio 0.0306.
  EXPECT_NEAR(area_sum / kDraws, 0.4333, 0.006);
  EXPECT_NEAR(log_ratio_sum / kDraws, 0.0306, 0.005);
}

TEST(ResizedCrop, TakesTheCentreWhereNothingFits) {
  // 1,000 x 10: no ratio from 3/4 to 4/3 has 8 % of the area.
  EXPECT_EQ(draw_resized_crop(1, 1'000, 10),
            (PixelBox{.x = 493, .y = 0, .width = 13, .height = 10}));
  EXPECT_EQ(draw_resized_crop(1, 10, 1'000),
            (PixelBox{.x = 0, .y = 493, .width = 10, .height = 13}));
  EXPECT_EQ(draw_resized_crop(1, 1, 1), (PixelBox{.width = 1, .height = 1}));
}

TEST(ImagePlan, DecodesSmallerOnlyWhereNothingIsLost) {
  const ImageShape shape{.height = 224, .width = 224};
  const ImageHeader jpeg = {.width = 1'000, .height = 900};
  EXPECT_EQ(plan_part(jpeg, {.width = 447, .height = 800}, shape).denominator, 1u);
  EXPECT_EQ(plan_part(jpeg, {.width = 448, .height = 800}, shape).denominator, 2u);
  EXPECT_EQ(plan_part(jpeg, {.width = 1'000, .height = 900}, shape).denominator, 4u);
  ImageHeader png = jpeg;
  png.format = ImageFormat::png;
  EXPECT_EQ(plan_part(png, {.width = 1'000, .height = 900}, shape).denominator, 1u);
  // 3,001 x 2,001 at 1/4 has 751 x 501 pixels, of which the part's are 200 to 300.
  const ImagePlan plan =
      plan_part({.width = 3'001, .height = 2'001},
                {.x = 801, .y = 1, .width = 2'200, .height = 2'000}, {.height = 500, .width = 500});
  EXPECT_EQ(plan.denominator, 4u);
  EXPECT_EQ(plan.resampling.source, (PixelBox{.x = 200, .y = 0, .width = 551, .height = 501}));
}

TEST(ImagePlan, TestsTheCentreAsTorchvision) {
  const ImageShape shape{.height = 224, .width = 224};
  EXPECT_EQ(test_short_side(224), 256u);
  const ImagePlan plan = plan_centre({.width = 500, .height = 375}, shape, 256);
  EXPECT_EQ(plan.resampling.source, (PixelBox{.width = 500, .height = 375}));
  EXPECT_EQ(plan.resampling.width, 341u);  // int(256 * 500 / 375)
  EXPECT_EQ(plan.resampling.height, 256u);
  EXPECT_EQ(plan.resampling.cut, (PixelBox{.x = 58, .y = 16, .width = 224, .height = 224}));
  // An image of the network's size is taken as it is.
  EXPECT_EQ(plan_centre({.width = 224, .height = 224}, shape, 256).resampling.width, 224u);
}

}  // namespace
}  // namespace dp
