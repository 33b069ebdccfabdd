#include "app/options/share_choice.hpp"

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr WholeRange kWeight{1, 1'000'000}, kLeastImages{1, 65'536};
constexpr std::string_view kAuto = "auto", kAutoWithLeast = "auto:min=";

ShareChoice parse_shares(std::string_view text) {
  ShareChoice choice = {.given = std::string(text)};
  if (text == "even") return ShareChoice::even();
  if (text == kAuto) return choice;
  if (text.starts_with(kAutoWithLeast)) {
    choice.least = checked_cast<std::size_t>(
        parse_whole("", text.substr(kAutoWithLeast.size()), kLeastImages));
    return choice;
  }
  choice.kind = ShareChoice::Kind::weights;
  for (const std::string& weight : split_at(text, ':')) {
    choice.weights.push_back(checked_cast<std::uint64_t>(parse_whole("", weight, kWeight)));
  }
  return choice;
}

}  // namespace

ShareChoice parse_share_choice(std::string_view text) {
  try {
    return parse_shares(text);
  } catch (const Error&) {
    throw_error(ErrorKind::usage, "--shares {}: must be {}", shown(text), kShareChoices);
  }
}

}  // namespace dp
