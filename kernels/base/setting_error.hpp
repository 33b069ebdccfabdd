// Errors about the settings that a user chose.
//
// A library has names of its own for them ("codec", "timeout") and knows no program's options. So
// its messages use these names, and the error says which settings it is about. The program puts its
// options' names there (app/process/option_names.hpp).
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/error.hpp"

namespace dp {

enum class Setting {
  none,
  bad_images,
  bucket_size,
  checkpoint,
  codec,
  data_folder,
  data_set,
  decay_factors,
  device,
  earlier_log,
  exact_tensors,
  exchange_path,
  exported_weights,
  image_size,
  initial_weights,
  kept_tensors,
  log,
  lr_factors,
  model,
  nesterov,
  no_decay,
  optimizer,
  pack,
  timeout,
  topology,
  trace,
  validation_share,
};

// "exact tensors"
[[nodiscard]] std::string_view setting_name(Setting setting);

// OutOfMemory (error.hpp) needs none of this: its remedies are always a smaller batch or model.
class SettingError : public Error {
 public:
  // A value is refused: what() is "codec q7: unknown codec; known: none, fp16". A remedy is another
  // setting that `why` ends with.
  SettingError(Setting refused, std::string_view value, std::string_view why,
               ErrorKind kind = ErrorKind::usage, Setting remedy = Setting::none);
  // Something fails, and the message ends with the advice to change a setting.
  SettingError(ErrorKind kind, std::string_view message, Setting remedy);

  // The setting at the front of what(), or none.
  [[nodiscard]] Setting refused() const { return refused_; }
  [[nodiscard]] Setting remedy() const { return remedy_; }
  // what() without the name of the refused setting: "q7: unknown codec; known: none, fp16".
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

 private:
  Setting refused_, remedy_;
  std::string complaint_;
};

}  // namespace dp
