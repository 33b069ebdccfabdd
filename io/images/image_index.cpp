#include "io/images/image_index.hpp"

#include <xxhash.h>

#include "io/images/image_tree.hpp"
#include "io/images/run_in_parts.hpp"

namespace dp {
namespace {

// The number of bytes of the UTF-8 character at the front of `text`; 0 if the text does not begin
// with a valid character.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80           ? 1
                             : (byte(0) >> 5) == 0x06 ? 2
                             : (byte(0) >> 4) == 0x0E ? 3
                             : (byte(0) >> 3) == 0x1E ? 4
                                                      : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    std::size_t length = character_bytes(text);
    if (length == 0 || first < 0x20 || first == 0x7F) {
      out += fmt::format("\\x{:02x}", first);
      length = 1;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::uint64_t EncodedImages::checksum(const ImageIndex& index, const IndexedImage& image) const {
  std::vector<std::uint8_t> bytes;
  read(index, image, bytes);
  return XXH3_64bits(bytes.data(), bytes.size());
}

HeaderScan scan_headers(ImageTree& tree, const std::vector<std::uint32_t>& images,
                        std::size_t threads) {
  std::vector<std::string> reasons(images.size());  // empty: good
  if (!tree.has_headers) {
    constexpr std::size_t kPiece = 64;
    const auto* files = dynamic_cast<const FolderFiles*>(tree.files.get());
    DP_ASSERT(files != nullptr, "headers can be read only from image files in folders");
    run_in_parts(images.size(), threads, kPiece, [&](std::size_t begin, std::size_t end) {
      std::vector<std::uint8_t> bytes;
      for (std::size_t i = begin; i < end; ++i) {
        IndexedImage& image = tree.index->images[images[i]];
        try {
          files->read_header(*tree.index, image, bytes);
        } catch (const BadImage& error) {
          reasons[i] = error.what();
        }
      }
    });
  }
  HeaderScan scan;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const IndexedImage& image = tree.index->images[images[i]];
    if (reasons[i].empty()) {
      scan.good.push_back(images[i]);
    } else {
      scan.bad.push_back(
          fmt::format("{}: {}", printable(tree.files->name_of(*tree.index, image)), reasons[i]));
    }
  }
  return scan;
}

}  // namespace dp
