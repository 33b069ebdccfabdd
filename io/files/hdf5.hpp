// HDF5's C library with owning handles and exceptions.
//
// H5Handle owns an identifier and closes it. DP_CHECK_HDF5(call) returns the call's value or throws
// Error(data). If the library's error stack contains the system's reason, such as "No space left on
// device", the message gives this reason. If not, the message gives the innermost description of
// the stack, and the call. Only one thread at a time may use HDF5 (Debian's library has no locks).
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace dp {

class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  H5Handle() = default;
  // `id` is an identifier that DP_CHECK_HDF5 has returned. `closer` is the HDF5 function that
  // closes identifiers of this kind, such as H5Fclose.
  H5Handle(hid_t id, Close closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept;
  H5Handle& operator=(H5Handle&& other) noexcept;
  H5Handle(const H5Handle&) = delete;
  H5Handle& operator=(const H5Handle&) = delete;
  ~H5Handle();  // closes and ignores errors

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  // Closes the identifier. Throws Error(data) if HDF5 reports a failure. A second call does
  // nothing.
  void close();

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close closer_ = nullptr;
};

// Call this before any other HDF5 function. It stops HDF5 from printing its error stack on stderr,
// because exceptions carry the reason. It also stops HDF5 from closing files when the process ends,
// because HDF5 would crash when it closes a file that it could not write.
void prepare_hdf5();

// open_hdf5() opens a file for reading, and refuses pipes and devices. create_hdf5() creates an
// empty file and replaces any file of this name, like open_new_file() (io/files/saved_file.hpp).
// Neither function locks the file, because some file systems have no lock service. Locks are not
// needed: only logs change while others may read them, and readers of logs allow for changes.
[[nodiscard]] H5Handle open_hdf5(const std::string& path);
[[nodiscard]] H5Handle create_hdf5(const std::string& path);

// All HDF5 calls return a negative value when they fail.
template <class T>
T check_hdf5(T value, const char* expression, const char* file, int line);
// The calls return int, hid_t or hssize_t. The last two are each int or long, depending on HDF5's
// version.
extern template int check_hdf5(int, const char*, const char*, int);
extern template long check_hdf5(long, const char*, const char*, int);
extern template long long check_hdf5(long long, const char*, const char*, int);

// The value of an attribute. Strings are UTF-8 of variable length; arrays are one-dimensional.
using AttributeValue = std::variant<std::string, std::vector<std::string>, std::int64_t,
                                    std::uint8_t, double, std::vector<double>>;

// Write an attribute of a file, group or data set; an existing attribute of this name is replaced.
void write_attribute(hid_t object, const std::string& name, const std::string& value);
void write_attribute(hid_t object, const std::string& name, std::span<const std::string> values);
void write_attribute(hid_t object, const std::string& name, std::int64_t value);
void write_attribute(hid_t object, const std::string& name, std::uint8_t value);
void write_attribute(hid_t object, const std::string& name, double value);
void write_attribute(hid_t object, const std::string& name, std::span<const double> values);
void write_any_attribute(hid_t object, const std::string& name, const AttributeValue& value);

// Read a string, a scalar number, or a whole number of at least 0. For an array of strings,
// read_text_attribute() returns the first one, or an empty text if the array is empty. All three
// functions throw Error(data) if the attribute does not exist.
[[nodiscard]] std::string read_text_attribute(hid_t object, const std::string& name);
[[nodiscard]] double read_number_attribute(hid_t object, const std::string& name);
[[nodiscard]] std::size_t read_whole_attribute(hid_t object, const std::string& name);
// Reads an attribute of any type that write_attribute() writes; throws Error(data) for other types.
[[nodiscard]] AttributeValue read_attribute(hid_t object, const std::string& name);
[[nodiscard]] std::vector<std::string> attribute_names(hid_t object);

// The offset of a data set's object header in the file.
[[nodiscard]] haddr_t header_address(hid_t object);

}  // namespace dp

#define DP_CHECK_HDF5(call) ::dp::check_hdf5((call), #call, __FILE__, __LINE__)
