#include "io/run_choices.hpp"

#include <charconv>

#include "io/hdf5.hpp"
#include "io/trial.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// An option of the run from /config; 0 if it is not set.
std::size_t number_of(hid_t config, const std::string& name) {
  const std::string text = read_text_attribute(config, name);
  std::size_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

RunChoices read(const std::string& path) {
  const H5Handle access(DP_CHECK_HDF5(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  // It may be the log of a run that is still going on.
  DP_CHECK_HDF5(H5Pset_file_locking(access.get(), false, true));
  const H5Handle file(DP_CHECK_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get())), H5Fclose);
  const H5Handle config(DP_CHECK_HDF5(H5Gopen2(file.get(), "config", H5P_DEFAULT)), H5Gclose);
  const H5Handle model(DP_CHECK_HDF5(H5Gopen2(file.get(), "model", H5P_DEFAULT)), H5Gclose);
  RunChoices choices;
  choices.model = read_text_attribute(model.get(), "name");
  choices.precision = read_text_attribute(config.get(), "precision");
  choices.device = read_text_attribute(file.get(), "devices");
  const auto ranks = static_cast<std::size_t>(read_number_attribute(file.get(), "world_size"));
  choices.batch_per_rank = number_of(config.get(), "batch-size");
  if (choices.batch_per_rank == 0 && ranks > 0) {
    // The ranks' parts differ by at most one image; rank 0 has the larger one.
    // Logs of earlier versions know no parts.
    const bool has_parts = H5Aexists(config.get(), "accumulate") > 0;
    const std::size_t at_once = ranks * (has_parts ? number_of(config.get(), "accumulate") : 1);
    choices.batch_per_rank = (number_of(config.get(), "global-batch") + at_once - 1) / at_once;
  }
  choices.algorithms = read_text_attribute(model.get(), "algorithms");
  choices.exchange_path = read_text_attribute(file.get(), "exchange_path");
  choices.bucket_bytes =
      static_cast<std::size_t>(read_number_attribute(file.get(), "bucket_bytes"));
  return choices;
}

}  // namespace

RunChoices read_run_choices(const std::string& path) {
  prepare_hdf5();
  try {
    try_in_child(path, [&] { static_cast<void>(read(path)); });
    return read(path);
  } catch (const Error& error) {
    const std::string reason = error.what();
    throw SettingError(
        Setting::earlier_log, path,
        reason.starts_with("HDF5") ? "is not the log of a run, or it is damaged" : reason,
        ErrorKind::data);
  }
}

}  // namespace dp
