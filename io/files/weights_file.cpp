#include "io/files/weights_file.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "io/files/hdf5.hpp"
#include "io/files/new_file.hpp"
#include "io/files/saved_file.hpp"
#include "io/files/trial.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr const char* kFormat = "dptrain weights 1";

void write_set(hid_t file, const char* name, const WeightSet& set) {
  const H5Handle group(DP_CHECK_HDF5(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
                       H5Gclose);
  write_attribute(group.get(), "epoch", set.epoch);
  write_attribute(group.get(), "test_accuracy", set.test_accuracy);
  write_attribute(group.get(), "test_loss", set.test_loss);
  for (const WeightTensor& tensor : set.tensors) {
    const std::vector<hsize_t> shape(tensor.shape.begin(), tensor.shape.end());
    const H5Handle space(
        DP_CHECK_HDF5(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr)),
        H5Sclose);
    H5Handle data(DP_CHECK_HDF5(H5Dcreate2(group.get(), tensor.name.c_str(), H5T_IEEE_F32LE,
                                           space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
                  H5Dclose);
    DP_CHECK_HDF5(H5Dwrite(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                           tensor.values.data()));
    data.close();
  }
}

void write(const std::string& path, const WeightsFile& weights) {
  H5Handle file = create_hdf5(path);
  write_attribute(file.get(), "format", std::string(kFormat));
  write_attribute(file.get(), "model", weights.model);
  write_attribute(file.get(), "classes", static_cast<std::int64_t>(weights.classes));
  write_attribute(file.get(), "channels", static_cast<std::int64_t>(weights.image.channels));
  write_attribute(file.get(), "height", static_cast<std::int64_t>(weights.image.height));
  write_attribute(file.get(), "width", static_cast<std::int64_t>(weights.image.width));
  const auto& [mean, deviation] = weights.normalization;
  write_attribute(file.get(), "mean", std::vector<double>(mean.begin(), mean.end()));
  write_attribute(file.get(), "deviation", std::vector<double>(deviation.begin(), deviation.end()));
  write_set(file.get(), "last", weights.last);
  if (weights.best) {
    write_set(file.get(), "best", *weights.best);
  } else {
    DP_CHECK_HDF5(H5Lcreate_hard(file.get(), "last", file.get(), "best", H5P_DEFAULT, H5P_DEFAULT));
  }
  file.close();
}

WeightTensor read_tensor(hid_t group, const std::string& name, std::uint64_t file_bytes) {
  const H5Handle data(DP_CHECK_HDF5(H5Dopen2(group, name.c_str(), H5P_DEFAULT)), H5Dclose);
  const H5Handle space(DP_CHECK_HDF5(H5Dget_space(data.get())), H5Sclose);
  const int dimensions = DP_CHECK_HDF5(H5Sget_simple_extent_ndims(space.get()));
  std::vector<hsize_t> shape(static_cast<std::size_t>(dimensions));
  DP_CHECK_HDF5(H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr));
  WeightTensor tensor{.name = name, .shape = {shape.begin(), shape.end()}, .values = {}};
  // A damaged file may claim any shape, so the shape is checked: a tensor cannot be larger than the
  // bytes that the file stores for it.
  const hsize_t stored = std::min<hsize_t>(H5Dget_storage_size(data.get()), file_bytes);
  hsize_t elements = 1;
  for (const hsize_t length : shape) {
    if (length > stored / std::max<hsize_t>(elements, 1)) {
      throw_error(ErrorKind::data, "HDF5: {}", name);
    }
    elements *= length;
  }
  tensor.values.resize(elements);
  DP_CHECK_HDF5(
      H5Dread(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.values.data()));
  return tensor;
}

std::vector<std::string> names_in(hid_t group) {
  std::vector<std::string> names;
  const auto note = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  DP_CHECK_HDF5(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &names));
  return names;
}

WeightsFile read(const std::string& path, WhichWeights which) {
  const H5Handle file = open_hdf5(path);
  if (read_text_attribute(file.get(), "format") != kFormat) {
    throw_error(ErrorKind::data, "HDF5: another format");
  }
  const auto whole = [&](const char* name) { return read_whole_attribute(file.get(), name); };
  WeightsFile weights;
  weights.model = read_text_attribute(file.get(), "model");
  weights.classes = whole("classes");
  weights.image = {whole("channels"), whole("height"), whole("width")};
  const H5Handle group(DP_CHECK_HDF5(H5Gopen2(
                           file.get(), which == WhichWeights::best ? "best" : "last", H5P_DEFAULT)),
                       H5Gclose);
  weights.last.epoch = static_cast<std::int64_t>(read_whole_attribute(group.get(), "epoch"));
  weights.last.test_accuracy = read_number_attribute(group.get(), "test_accuracy");
  weights.last.test_loss = read_number_attribute(group.get(), "test_loss");
  const std::uint64_t file_bytes = std::filesystem::file_size(path);
  for (const std::string& name : names_in(group.get())) {
    weights.last.tensors.push_back(read_tensor(group.get(), name, file_bytes));
  }
  return weights;
}

}  // namespace

void write_weights(const std::string& path, const WeightsFile& weights, bool replaces) {
  prepare_hdf5();
  const std::string part = path + ".part";
  if (!replaces) create_new_file(Setting{"exported weights"}, part);
  try {
    write(part, weights);
    sync_file(open_file(part, O_RDWR | O_NOFOLLOW));
    if (!replaces) {
      rename_to_new_file(Setting{"exported weights"}, part, path);
    } else if (std::rename(part.c_str(), path.c_str()) != 0) {
      throw_cannot_create(Setting{"exported weights"}, path, errno);
    }
  } catch (const SettingError&) {
    std::remove(part.c_str());
    throw;
  } catch (const Error& error) {
    std::remove(part.c_str());
    throw SettingError(Setting{"exported weights"}, path,
                       fmt::format("cannot be written: {}", error.what()), ErrorKind::data);
  }
}

WeightsFile read_weights(const std::string& path, WhichWeights which, Setting setting) {
  prepare_hdf5();
  try {
    try_in_child(path, [&] { static_cast<void>(read(path, which)); });
    return read(path, which);
  } catch (const Error& error) {
    const std::string reason = error.what();
    throw SettingError(
        setting, path,
        reason.starts_with("HDF5") ? "is not a file of exported weights, or it is damaged" : reason,
        ErrorKind::data);
  }
}

}  // namespace dp
