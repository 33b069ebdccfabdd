#include "app/process/option_names.hpp"

#include <algorithm>
#include <new>

namespace dp {
namespace {

using Row = OptionNames::Row;

constexpr Row kDptrainRows[] = {
    {"bad images", "--bad-images"},
    {"size of buckets", "--bucket-mb"},
    {"checkpoint", "--checkpoint"},
    {"codec", "--compress"},
    {"data folder", "--data-dir"},
    {"data set", "--dataset"},
    {"decay factors", "--decay-factors"},
    {"device", "--device"},
    {"log of an earlier run", "--autotune"},
    {"exact tensors", "--compress-exclude"},
    {"exchange path", "--gpu-exchange"},
    {"exported weights", "--export"},
    {"initial weights", "--init"},
    {"tensors that keep their initial values", "--init-except"},
    {"log", "--log"},
    {"learning-rate factors", "--lr-factors"},
    {"model", "--model"},
    {"Nesterov's momentum", "--nesterov"},
    {"tensors without weight decay", "--no-decay"},
    {"optimiser", "--optimizer"},
    {"pack", ""},  // an argument of dptrain-pack
    {"timeout", "--comm-timeout"},
    {"topology", "--topology"},
    {"trace", "--trace"},
    {"validation share", "--validation-share"},
};
// Codecs have no row here, because in dpbench they are words and not values of an option.
constexpr Row kDpbenchRows[] = {{"size of buckets", "--bucket-mb"},
                                {"device", "--device"},
                                {"model", "--model"},
                                {"topology", "--topology"}};
constexpr Row kPackRows[] = {{"bad images", "--bad-images"}};

}  // namespace

const OptionNames kDptrainNames = {.rows = kDptrainRows,
                                   .for_memory = "option --batch-size or --model"};
const OptionNames kDpbenchNames = {
    .rows = kDpbenchRows,
    .for_memory = "option --batch or --model of layers, option --mb of other benches"};
const OptionNames kPackNames = {.rows = kPackRows, .for_memory = "option --threads"};

std::string_view OptionNames::option_of(Setting setting) const {
  const auto row = std::ranges::find(rows, setting.word, &Row::word);
  return row == rows.end() ? std::string_view() : row->option;
}

void rethrow_with_option_names(const OptionNames& names) {
  try {
    throw;
  } catch (const SettingError& error) {
    const std::string_view refused = names.option_of(error.refused());
    const std::string_view remedy = names.option_of(error.remedy());
    std::string text =
        refused.empty() ? error.what() : fmt::format("{} {}", refused, error.complaint());
    if (!remedy.empty()) text += fmt::format(" (option {})", remedy);
    throw Error(error.kind(), text);
  } catch (const OutOfMemory& error) {
    throw Error(error.kind(), fmt::format("{} ({})", error.what(), names.for_memory));
  } catch (const std::bad_alloc&) {
    std::string message;
    static_cast<void>(exit_code_of_current_exception(message));
    throw Error(ErrorKind::device, fmt::format("{} ({})", message, names.for_memory));
  }
}

}  // namespace dp
