#include "io/hdf5.hpp"

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {

H5Handle::H5Handle(H5Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)),
      closer_(std::exchange(other.closer_, nullptr)) {}

H5Handle& H5Handle::operator=(H5Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(closer_, other.closer_);
  return *this;
}

H5Handle::~H5Handle() {
  if (id_ >= 0) closer_(id_);
}

void H5Handle::close() {
  if (id_ >= 0) DP_CHECK_HDF5(closer_(std::exchange(id_, H5I_INVALID_HID)));
}

namespace {

// The contents of HDF5's error stack.
struct Reason {
  int system_error = 0;  // 0: none is named
  std::string innermost = {};
};

Reason current_reason() {
  Reason found;
  // A C callback must not throw, so without memory the text is lost.
  const H5E_walk2_t look = [](unsigned, const H5E_error2_t* error, void* target) -> herr_t {
    try {
      auto& reason = *static_cast<Reason*>(target);
      const std::string text = error->desc == nullptr ? "" : error->desc;
      if (reason.innermost.empty()) reason.innermost = text;
      // The file driver writes "..., errno = 28, error message = '...', buf = 0x..., ...".
      constexpr std::string_view kMark = "errno = ";
      const std::size_t at = text.find(kMark);
      if (at != std::string::npos && reason.system_error == 0) {
        reason.system_error = std::atoi(text.c_str() + at + kMark.size());
      }
    } catch (...) {
      return -1;
    }
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, look, &found);
  H5Eclear2(H5E_DEFAULT);
  return found;
}

}  // namespace

void prepare_hdf5() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

template <class T>
T check_hdf5(T value, const char* expression, const char* file, int line) {
  if (value < 0) {
    const Reason reason = current_reason();
    if (reason.system_error != 0) {
      throw Error(ErrorKind::data, std::strerror(reason.system_error));
    }
    throw_error(ErrorKind::data, "HDF5: {} ({}, {}:{})",
                reason.innermost.empty() ? "no further information" : reason.innermost, expression,
                file, line);
  }
  return value;
}
template int check_hdf5(int, const char*, const char*, int);
template hid_t check_hdf5(hid_t, const char*, const char*, int);

namespace {

H5Handle utf8_string_type() {
  H5Handle type(DP_CHECK_HDF5(H5Tcopy(H5T_C_S1)), H5Tclose);
  DP_CHECK_HDF5(H5Tset_size(type.get(), H5T_VARIABLE));
  DP_CHECK_HDF5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

void write(hid_t object, const std::string& name, hid_t type, hid_t space, const void* data) {
  if (DP_CHECK_HDF5(H5Aexists(object, name.c_str())) > 0) {
    DP_CHECK_HDF5(H5Adelete(object, name.c_str()));
  }
  H5Handle attribute(
      DP_CHECK_HDF5(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT)),
      H5Aclose);
  DP_CHECK_HDF5(H5Awrite(attribute.get(), type, data));
  attribute.close();
}

H5Handle scalar() { return {DP_CHECK_HDF5(H5Screate(H5S_SCALAR)), H5Sclose}; }

}  // namespace

void write_attribute(hid_t object, const std::string& name, const std::string& value) {
  const char* text = value.c_str();
  write(object, name, utf8_string_type().get(), scalar().get(), &text);
}

void write_attribute(hid_t object, const std::string& name, std::span<const std::string> values) {
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  texts.push_back(nullptr);  // so that an empty array has an address, too
  const hsize_t count = values.size();
  const H5Handle space(DP_CHECK_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
  write(object, name, utf8_string_type().get(), space.get(), texts.data());
}

void write_attribute(hid_t object, const std::string& name, std::int64_t value) {
  write(object, name, H5T_NATIVE_INT64, scalar().get(), &value);
}

void write_attribute(hid_t object, const std::string& name, std::uint8_t value) {
  write(object, name, H5T_NATIVE_UINT8, scalar().get(), &value);
}

void write_attribute(hid_t object, const std::string& name, double value) {
  write(object, name, H5T_NATIVE_DOUBLE, scalar().get(), &value);
}

void write_attribute(hid_t object, const std::string& name, std::span<const double> values) {
  const hsize_t count = values.size();
  const H5Handle space(DP_CHECK_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
  write(object, name, H5T_NATIVE_DOUBLE, space.get(), values.data());
}

std::string read_text_attribute(hid_t object, const std::string& name) {
  const H5Handle attribute(DP_CHECK_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT)), H5Aclose);
  const H5Handle space(DP_CHECK_HDF5(H5Aget_space(attribute.get())), H5Sclose);
  const hssize_t count = DP_CHECK_HDF5(H5Sget_simple_extent_npoints(space.get()));
  if (count == 0) return {};
  const H5Handle type = utf8_string_type();
  std::vector<char*> texts(static_cast<std::size_t>(count), nullptr);
  DP_CHECK_HDF5(H5Aread(attribute.get(), type.get(), texts.data()));
  std::string first = texts.front() == nullptr ? "" : texts.front();
  DP_CHECK_HDF5(H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, texts.data()));
  return first;
}

double read_number_attribute(hid_t object, const std::string& name) {
  const H5Handle attribute(DP_CHECK_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT)), H5Aclose);
  double value = 0;
  DP_CHECK_HDF5(H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value));
  return value;
}

}  // namespace dp
