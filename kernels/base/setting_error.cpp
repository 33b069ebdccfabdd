#include "kernels/base/setting_error.hpp"

namespace dp {

std::string_view setting_name(Setting setting) {
  switch (setting) {
    case Setting::none:
      break;
    case Setting::bad_images:
      return "bad images";
    case Setting::bucket_size:
      return "size of buckets";
    case Setting::checkpoint:
      return "checkpoint";
    case Setting::codec:
      return "codec";
    case Setting::data_folder:
      return "data folder";
    case Setting::data_set:
      return "data set";
    case Setting::decay_factors:
      return "decay factors";
    case Setting::device:
      return "device";
    case Setting::earlier_log:
      return "log of an earlier run";
    case Setting::exact_tensors:
      return "exact tensors";
    case Setting::exchange_path:
      return "exchange path";
    case Setting::exported_weights:
      return "exported weights";
    case Setting::image_size:
      return "image size";
    case Setting::initial_weights:
      return "initial weights";
    case Setting::kept_tensors:
      return "tensors that keep their initial values";
    case Setting::log:
      return "log";
    case Setting::lr_factors:
      return "learning-rate factors";
    case Setting::model:
      return "model";
    case Setting::nesterov:
      return "Nesterov's momentum";
    case Setting::no_decay:
      return "tensors without weight decay";
    case Setting::optimizer:
      return "optimiser";
    case Setting::pack:
      return "pack";
    case Setting::timeout:
      return "timeout";
    case Setting::topology:
      return "topology";
    case Setting::trace:
      return "trace";
    case Setting::validation_share:
      return "validation share";
  }
  DP_ASSERT(false, "setting {} has no name", static_cast<int>(setting));
  return "";
}

SettingError::SettingError(Setting refused, std::string_view value, std::string_view why,
                           ErrorKind kind, Setting remedy)
    : Error(kind, fmt::format("{} {}: {}", setting_name(refused), value, why)),
      refused_(refused),
      remedy_(remedy),
      complaint_(fmt::format("{}: {}", value, why)) {}

SettingError::SettingError(ErrorKind kind, std::string_view message, Setting remedy)
    : Error(kind, std::string(message)),
      refused_(Setting::none),
      remedy_(remedy),
      complaint_(message) {}

}  // namespace dp
