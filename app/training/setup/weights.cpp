#include "app/training/setup/weights.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "app/process/option_names.hpp"
#include "app/process/rank_main.hpp"
#include "app/training/setup/run_options.hpp"
#include "io/files/new_file.hpp"
#include "io/files/saved_file.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

using net::Parameter;

bool fits(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

void check_patterns(const std::vector<std::string>& patterns, net::Parameters& parameters) {
  for (const std::string& pattern : patterns) {
    const auto fits_it = [&](const Parameter& tensor) { return fits({pattern}, tensor.name); };
    if (std::ranges::any_of(parameters.tensors(), fits_it)) continue;
    if (std::ranges::any_of(parameters.frozen(), fits_it)) continue;
    if (std::ranges::any_of(parameters.statistics(), fits_it)) continue;
    throw SettingError(Setting{"tensors that keep their initial values"}, pattern,
                       fmt::format("matches no tensor of the model; its first tensor is {}",
                                   parameters.tensors().front().name));
  }
}

// "64x3x3x3"
std::string text_of(std::span<const std::size_t> shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

void check_values(const Options& options, const WeightTensor& tensor) {
  const bool is_variance = tensor.name.ends_with("running_var");
  const auto is_wrong = [&](float v) { return !std::isfinite(v) || (is_variance && v < 0.0f); };
  const auto wrong = std::ranges::find_if(tensor.values, is_wrong);
  if (wrong == tensor.values.end()) return;
  throw SettingError(Setting{"initial weights"}, options.init,
                     fmt::format("{} has the value {}; allowed: finite values{}", tensor.name,
                                 *wrong, is_variance ? " of at least 0" : ""),
                     ErrorKind::data);
}

}  // namespace

WeightSet collect_weights(Device& device, net::Network& network) {
  net::Parameters& parameters = network.parameters();
  WeightSet set;
  const auto collect = [&](std::span<const Parameter> tensors, std::span<float> buffer) {
    const std::vector<float> host = to_host(device, buffer);
    for (const Parameter& tensor : tensors) {
      WeightTensor& out = set.tensors.emplace_back();
      out.name = tensor.name;
      out.shape = tensor.torch_shape();
      out.values.resize(tensor.elements);
      net::Parameters::export_torch(tensor, host, out.values);
    }
  };
  collect(parameters.tensors(), parameters.values());
  collect(parameters.frozen(), parameters.frozen_values());
  collect(parameters.statistics(), parameters.evaluation_statistics());
  return set;
}

void apply_weights(const WeightsFile& weights, const Options& options, Device& device,
                   net::Network& network) {
  net::Parameters& parameters = network.parameters();
  const std::vector<std::string> kept = names_in(options.init_except);
  check_patterns(kept, parameters);
  std::map<std::string, const WeightTensor*> by_name;
  for (const WeightTensor& tensor : weights.last.tensors) by_name[tensor.name] = &tensor;
  const auto refuse = [&](const std::string& why) {
    const Setting remedy = weights.model == options.model
                               ? Setting{"tensors that keep their initial values"}
                               : Setting{"model"};
    throw SettingError(
        Setting{"initial weights"}, options.init,
        fmt::format("{}; the file says that its weights belong to {} with {} classes", why,
                    weights.model, weights.classes),
        ErrorKind::data, remedy);
  };
  const auto apply = [&](std::span<const Parameter> tensors, std::span<float> host) {
    for (const Parameter& tensor : tensors) {
      if (fits(kept, tensor.name)) continue;
      const auto found = by_name.find(tensor.name);
      if (found == by_name.end()) refuse(fmt::format("has no tensor {}", tensor.name));
      const WeightTensor& from = *found->second;
      if (from.shape != tensor.torch_shape()) {
        refuse(fmt::format("{} has the shape {} instead of {}", tensor.name, text_of(from.shape),
                           text_of(tensor.torch_shape())));
      }
      check_values(options, from);
      net::Parameters::import_torch(tensor, from.values, host);
    }
  };
  std::vector<float> values = to_host(device, parameters.values());
  std::vector<float> frozen = to_host(device, parameters.frozen_values());
  std::vector<float> statistics = to_host(device, parameters.training_statistics());
  apply(parameters.tensors(), values);
  apply(parameters.frozen(), frozen);
  apply(parameters.statistics(), statistics);
  const auto upload = [&](std::span<float> to, const std::vector<float>& from) {
    device.upload(to.data(), from.data(), from.size() * sizeof(float));
  };
  upload(parameters.values(), values);
  upload(parameters.frozen_values(), frozen);
  upload(parameters.training_statistics(), statistics);
  upload(parameters.evaluation_statistics(), statistics);
}

void load_initial_weights(const Options& options, Communicator& comm, Device& device,
                          net::Network& network) {
  together(comm, kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    apply_weights(read_weights(options.init, options.init_from == Options::InitFrom::best
                                                 ? WhichWeights::best
                                                 : WhichWeights::last),
                  options, device, network);
  });
  net::Parameters& parameters = network.parameters();
  const auto share = [&](std::span<float> buffer, std::span<float> copy) {
    const std::vector<float> mine = to_host(device, buffer);
    std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float));
    comm.broadcast(bytes);
    device.upload(buffer.data(), bytes.data(), bytes.size());
    if (!copy.empty()) device.upload(copy.data(), bytes.data(), bytes.size());
  };
  share(parameters.values(), {});
  share(parameters.frozen_values(), {});
  share(parameters.training_statistics(), parameters.evaluation_statistics());
}

WeightsExporter::WeightsExporter(std::string path, WeightsFile head, Earlier earlier)
    : path_(std::move(path)), file_(std::move(head)) {
  std::error_code ignored;
  if (earlier != Earlier::refused) std::filesystem::remove(path_ + ".part", ignored);
  if (earlier == Earlier::moved) move_aside(Setting{"exported weights"}, path_);
  if (earlier == Earlier::continued) {
    take_earlier();
  } else {
    check_new_file(Setting{"exported weights"}, path_);
    // Checked now, because otherwise the run would fail only after its first epoch.
    check_new_file(Setting{"exported weights"}, path_ + ".part");
  }
}

// A file that cannot be read, or a disk that cannot be written now, does not end a resumed run.
void WeightsExporter::take_earlier() {
  std::error_code ignored;
  if (!std::filesystem::exists(path_, ignored)) return;
  try {
    // The best epoch in the file may come after the checkpoint. This run trains that epoch again,
    // with the same weights as a result.
    with_option_names(kDptrainNames, [&] {
      best_ = read_weights(path_, WhichWeights::best, Setting{"exported weights"}).last;
    });
    has_best_ = is_written_ = true;
  } catch (const Error& error) {
    warning_ = error.what();
    try {
      warning_ += fmt::format("; it was renamed {}, and the best epoch is counted from here on",
                              move_aside(Setting{"exported weights"}, path_));
    } catch (const Error&) {  // write() reports that a file with this name exists
    }
  }
}

void WeightsExporter::write(WeightSet after_epoch) {
  file_.last = std::move(after_epoch);
  // If a run was stopped in its first epoch, its weights have no accuracy (NaN). Any later weights
  // count as better.
  const bool is_best = !has_best_ || std::isnan(best_.test_accuracy) ||
                       file_.last.test_accuracy > best_.test_accuracy;
  if (is_best) {
    best_ = file_.last;
    has_best_ = true;
    file_.best.reset();
  } else {
    file_.best = best_;
  }
  write_weights(path_, file_, is_written_);
  is_written_ = true;
  try {
    sync_folder_of(path_);
  } catch (const Error& error) {
    throw SettingError(Setting{"exported weights"}, path_,
                       fmt::format("its folder cannot be written: {}", error.what()),
                       ErrorKind::data);
  }
}

}  // namespace dp
