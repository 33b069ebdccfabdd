#include "tests/fuzz/targets.hpp"

#include <algorithm>
#include <string>

#include "app/options/options.hpp"
#include "io/images/encoded_image.hpp"
#include "kernels/codecs/codec.hpp"
#include "tests/io/images/image_files.hpp"

namespace dp::fuzz {
namespace {

std::string text_of(std::span<const std::uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// JPEG and PNG. Images of a few million pixels are decoded; larger ones only cost time.
void read_image(std::span<const std::uint8_t> bytes) {
  constexpr std::uint64_t kMost = 4u << 20;
  ends_in_error_at_most([&] {
    const auto header = read_image_header(bytes, bytes.size());
    if (!header || std::uint64_t{header->width} * header->height > kMost) return;
    const std::uint32_t denominator = header->format == ImageFormat::jpeg ? 2 : 1;
    DecodedImage image;
    decode_image(bytes, *header, denominator,
                 {.x = 0,
                  .y = 0,
                  .width = scaled_size(header->width, denominator),
                  .height = scaled_size(header->height, denominator)},
                 image);
  });
}

std::vector<Bytes> image_seeds() { return {make_jpeg(19, 13, 1), make_png(19, 13, 1)}; }

void read_codec_spec(std::span<const std::uint8_t> bytes) {
  ends_in_error_at_most([&] { static_cast<void>(parse_codec_spec(text_of(bytes))); });
}

std::vector<Bytes> codec_spec_seeds() {
  return {bytes_of("q4:block=256,ef=on"), bytes_of("topk:ratio=0.01"), bytes_of("powersgd:rank=4"),
          bytes_of("dgc:ratio=0.001"), bytes_of("none")};
}

void read_config(std::span<const std::uint8_t> bytes) {
  static const OptionContext context;
  ends_in_error_at_most(
      [&] { static_cast<void>(parse_config_text(text_of(bytes), "a.ini", context)); });
}

std::vector<Bytes> config_seeds() {
  return {bytes_of("model=resnet20\nlr = 0.1\n# a comment\nepochs=3\n"),
          bytes_of("batch-schedule=30:512,60:1024\nlr-schedule=step:milestones=0.5/1/7\n"
                   "throttle=100mbit\n"),
          bytes_of("no-decay=bn,bias\nlr-factors=bias=64\nlookahead=5:0.5\nseed=4294967295\n")};
}

constexpr Target kTargets[] = {{"image", read_image, image_seeds},
                               {"codec_spec", read_codec_spec, codec_spec_seeds},
                               {"config", read_config, config_seeds}};

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> made(std::begin(kTargets), std::end(kTargets));
    for (const auto& more : {checkpoint_targets(), file_targets(), exchange_targets()}) {
      made.insert(made.end(), more.begin(), more.end());
    }
    return made;
  }();
  return all;
}

}  // namespace dp::fuzz
