#include "app/process/option_names.hpp"

#include <new>

namespace dp {
namespace {

std::string_view dptrain_option(Setting setting) {
  switch (setting) {
    case Setting::none:
      break;
    case Setting::bad_images:
      return "--bad-images";
    case Setting::bucket_size:
      return "--bucket-mb";
    case Setting::checkpoint:
      return "--checkpoint";
    case Setting::codec:
      return "--compress";
    case Setting::data_folder:
      return "--data-dir";
    case Setting::data_set:
      return "--dataset";
    case Setting::decay_factors:
      return "--decay-factors";
    case Setting::device:
      return "--device";
    case Setting::earlier_log:
      return "--autotune";
    case Setting::exact_tensors:
      return "--compress-exclude";
    case Setting::exchange_path:
      return "--gpu-exchange";
    case Setting::exported_weights:
      return "--export";
    case Setting::image_size:
      return "--image-size";
    case Setting::initial_weights:
      return "--init";
    case Setting::kept_tensors:
      return "--init-except";
    case Setting::log:
      return "--log";
    case Setting::lr_factors:
      return "--lr-factors";
    case Setting::model:
      return "--model";
    case Setting::nesterov:
      return "--nesterov";
    case Setting::no_decay:
      return "--no-decay";
    case Setting::optimizer:
      return "--optimizer";
    case Setting::pack:  // an argument of dptrain-pack
      break;
    case Setting::timeout:
      return "--comm-timeout";
    case Setting::topology:
      return "--topology";
    case Setting::trace:
      return "--trace";
    case Setting::validation_share:
      return "--validation-share";
  }
  return "";
}

// Codecs are words there, not values of an option.
std::string_view dpbench_option(Setting setting) {
  switch (setting) {
    case Setting::bucket_size:
      return "--bucket-mb";
    case Setting::device:
      return "--device";
    case Setting::model:
      return "--model";
    case Setting::topology:
      return "--topology";
    default:
      return "";
  }
}

std::string_view pack_option(Setting setting) {
  return setting == Setting::bad_images ? "--bad-images" : "";
}

}  // namespace

const OptionNames kDptrainNames = {.option_of = dptrain_option,
                                   .for_memory = "option --batch-size or --model"};
const OptionNames kDpbenchNames = {
    .option_of = dpbench_option,
    .for_memory = "option --batch or --model of layers, --mb of other benches"};

const OptionNames kPackNames = {.option_of = pack_option, .for_memory = "option --threads"};

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
