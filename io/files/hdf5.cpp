#include "io/files/hdf5.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "io/files/saved_file.hpp"
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
  int system_error = 0;  // errno; 0 if the stack has none
  std::string innermost = {};
};

Reason current_reason() {
  Reason found;
  // A C callback must not throw. If memory runs out, `look` therefore gives up and drops the text.
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
template long check_hdf5(long, const char*, const char*, int);
template long long check_hdf5(long long, const char*, const char*, int);

namespace {

H5Handle without_locks() {
  H5Handle access(DP_CHECK_HDF5(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  DP_CHECK_HDF5(H5Pset_file_locking(access.get(), false, true));
  return access;
}

}  // namespace

H5Handle open_hdf5(const std::string& path) {
  struct stat status {};
  // Refuse pipes, because H5Fopen() would wait until another process opens the pipe for writing.
  // HDF5 itself refuses folders and missing files, and gives the reason.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    throw Error(ErrorKind::data, "is not a regular file");
  }
  return {DP_CHECK_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, without_locks().get())), H5Fclose};
}

H5Handle create_hdf5(const std::string& path) {
  // HDF5 opens files only by name, and would follow a link with that name. So HDF5 gets a name from
  // /proc that always leads to the file opened here.
  const FileDescriptor file = open_new_file(path);
  const std::string name = fmt::format("/proc/self/fd/{}", file.get());
  return {DP_CHECK_HDF5(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, without_locks().get())),
          H5Fclose};
}

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

void write_any_attribute(hid_t object, const std::string& name, const AttributeValue& value) {
  std::visit(
      [&](const auto& its) {
        using Value = std::decay_t<decltype(its)>;
        if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          write_attribute(object, name, std::span<const std::string>(its));
        } else if constexpr (std::is_same_v<Value, std::vector<double>>) {
          write_attribute(object, name, std::span<const double>(its));
        } else {
          write_attribute(object, name, its);
        }
      },
      value);
}

namespace {

H5Handle open_attribute(hid_t object, const std::string& name) {
  return {DP_CHECK_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT)), H5Aclose};
}

// A damaged file may claim any length, so the length is limited. The limit is generous: no
// attribute of dptrain has more than one value per rank.
std::size_t length_of(const H5Handle& attribute) {
  constexpr std::size_t kMost = 1u << 20;
  const H5Handle space(DP_CHECK_HDF5(H5Aget_space(attribute.get())), H5Sclose);
  const auto length =
      static_cast<std::size_t>(DP_CHECK_HDF5(H5Sget_simple_extent_npoints(space.get())));
  if (length > kMost)
    throw_error(ErrorKind::data, "HDF5: an attribute has too many values, {}", length);
  return length;
}

std::vector<std::string> read_strings(const H5Handle& attribute) {
  std::vector<char*> texts(length_of(attribute), nullptr);
  if (texts.empty()) return {};
  const H5Handle type = utf8_string_type();
  DP_CHECK_HDF5(H5Aread(attribute.get(), type.get(), texts.data()));
  std::vector<std::string> strings;
  for (const char* text : texts) strings.emplace_back(text == nullptr ? "" : text);
  const H5Handle space(DP_CHECK_HDF5(H5Aget_space(attribute.get())), H5Sclose);
  DP_CHECK_HDF5(H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, texts.data()));
  return strings;
}

template <class T>
std::vector<T> read_numbers(const H5Handle& attribute, hid_t type) {
  std::vector<T> values(length_of(attribute));
  if (!values.empty()) DP_CHECK_HDF5(H5Aread(attribute.get(), type, values.data()));
  return values;
}

}  // namespace

std::string read_text_attribute(hid_t object, const std::string& name) {
  const std::vector<std::string> all = read_strings(open_attribute(object, name));
  return all.empty() ? "" : all.front();
}

double read_number_attribute(hid_t object, const std::string& name) {
  const H5Handle attribute = open_attribute(object, name);
  if (length_of(attribute) != 1) {
    throw_error(ErrorKind::data, "HDF5: the attribute {} is not one number", name);
  }
  return read_numbers<double>(attribute, H5T_NATIVE_DOUBLE).front();
}

std::size_t read_whole_attribute(hid_t object, const std::string& name) {
  constexpr double kMost = 0x1p53;  // above it, doubles cannot represent all whole numbers
  const double number = read_number_attribute(object, name);
  if (!(number >= 0.0 && number <= kMost) || number != std::floor(number)) {
    throw_error(ErrorKind::data, "HDF5: the attribute {} is not a whole number of at least 0",
                name);
  }
  return static_cast<std::size_t>(number);
}

AttributeValue read_attribute(hid_t object, const std::string& name) {
  const H5Handle attribute = open_attribute(object, name);
  const H5Handle type(DP_CHECK_HDF5(H5Aget_type(attribute.get())), H5Tclose);
  const H5Handle space(DP_CHECK_HDF5(H5Aget_space(attribute.get())), H5Sclose);
  const bool is_array = H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE;
  const std::size_t count = length_of(attribute);
  if (is_array || count == 1) {
    switch (H5Tget_class(type.get())) {
      case H5T_STRING: {
        std::vector<std::string> strings = read_strings(attribute);
        if (is_array) return strings;
        return std::move(strings.front());
      }
      case H5T_INTEGER: {
        if (is_array) break;
        const auto number = read_numbers<std::int64_t>(attribute, H5T_NATIVE_INT64).front();
        if (H5Tget_size(type.get()) == 1) return static_cast<std::uint8_t>(number);
        return number;
      }
      case H5T_FLOAT: {
        std::vector<double> numbers = read_numbers<double>(attribute, H5T_NATIVE_DOUBLE);
        if (is_array) return numbers;
        return numbers.front();
      }
      default:
        break;
    }
  }
  throw_error(ErrorKind::data, "HDF5: the attribute {} is neither text nor number", name);
}

std::vector<std::string> attribute_names(hid_t object) {
  std::vector<std::string> names;
  const auto note = [](hid_t, const char* name, const H5A_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  DP_CHECK_HDF5(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &names));
  return names;
}

haddr_t header_address(hid_t object) {
#if H5_VERSION_GE(1, 12, 0)
  H5O_info1_t info;
#else
  H5O_info_t info;
#endif
  DP_CHECK_HDF5(H5Oget_info1(object, &info));
  return info.addr;
}

}  // namespace dp
