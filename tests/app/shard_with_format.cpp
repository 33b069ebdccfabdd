// Rewrites parts of checkpoints as an earlier or a later dptrain would have written them:
//     shard_with_format FORMAT FILE...
// The head of format 1 has no number, and does not say whose the part is. Everything else stays.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "io/files/checkpoint_file.hpp"
#include "io/files/whole_file.hpp"

namespace {

std::string head_of(const std::string& format, const std::string& head) {
  std::istringstream lines(head);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const bool is_number = line.starts_with("format = ");
    const bool is_new = is_number || line.starts_with("part.") || line.starts_with("log.size = ");
    if (format != "1" && is_number) line = "format = " + format;
    if (format != "1" || !is_new) text += line + "\n";
  }
  return text;
}

void rewrite(const std::string& path, const std::string& format) {
  const dp::Shard shard = dp::Shard::read(path);
  const std::string head = head_of(format, shard.text(dp::kHeadEntry));
  std::vector<dp::ShardEntry> entries = shard.entries();
  for (dp::ShardEntry& entry : entries) {
    if (entry.name == dp::kHeadEntry) entry.size = head.size();
  }
  dp::ShardImage image;
  image.lay_out(entries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::span<const std::byte> bytes =
        entries[i].name == dp::kHeadEntry ? std::as_bytes(std::span(head)) : shard.bytes_of(i);
    std::ranges::copy(bytes, image.bytes_of(i).begin());
  }
  dp::write_whole_file(path, path + ".new", image.seal());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    for (int i = 2; i < argc; ++i) rewrite(argv[i], argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shard_with_format: %s\n", error.what());
    return 1;
  }
}
