// HDF5's C library with owning handles and exceptions.
//
// H5Handle owns an identifier and closes it. DP_CHECK_HDF5(call) returns the call's value or throws
// Error(data). The message has the system's reason, such as "No space left on device", if the
// library's error stack contains one; otherwise the stack's innermost description and the call.
// Only one thread at a time may use HDF5 (Debian's library has no locks).
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
  // Takes an identifier that DP_CHECK_HDF5 has returned, and the function that closes it.
  H5Handle(hid_t id, Close closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept;
  H5Handle& operator=(H5Handle&& other) noexcept;
  H5Handle(const H5Handle&) = delete;
  H5Handle& operator=(const H5Handle&) = delete;
  ~H5Handle();  // closes and ignores errors

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  // Closes now; throws Error(data) if that fails. Closing twice does nothing.
  void close();

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close closer_ = nullptr;
};

// Must be the first call. Stops HDF5 from printing its error stack on stderr, because exceptions
// carry the reason. Also stops HDF5 from closing files when the process ends, because HDF5 would
// crash then if a file could not be written.
void prepare_hdf5();

// Open a file for reading, or create an empty one in place of any file of this name, as
// open_new_file() of io/files/saved_file.hpp does. open_hdf5() refuses pipes and devices. Neither
// function locks the file, because some file systems have no lock service. No lock is needed: no
// file changes under its own name, except logs, whose readers allow for that.
[[nodiscard]] H5Handle open_hdf5(const std::string& path);
[[nodiscard]] H5Handle create_hdf5(const std::string& path);

// All HDF5 calls return a negative value when they fail.
template <class T>
T check_hdf5(T value, const char* expression, const char* file, int line);
// hid_t and hssize_t are each one of these types; in HDF5 1.14 both are the same.
extern template int check_hdf5(int, const char*, const char*, int);
extern template long check_hdf5(long, const char*, const char*, int);
extern template long long check_hdf5(long long, const char*, const char*, int);

// The value of an attribute. Strings are UTF-8 of variable length; arrays are one-dimensional.
using AttributeValue = std::variant<std::string, std::vector<std::string>, std::int64_t,
                                    std::uint8_t, double, std::vector<double>>;

// Write an attribute of a file, group or data set; an existing one is replaced.
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
// Reads an attribute of any type that write_attribute() writes; throws Error(data) for others.
[[nodiscard]] AttributeValue read_attribute(hid_t object, const std::string& name);
[[nodiscard]] std::vector<std::string> attribute_names(hid_t object);

// The offset of a data set's object header in the file.
[[nodiscard]] haddr_t header_address(hid_t object);

}  // namespace dp

#define DP_CHECK_HDF5(call) ::dp::check_hdf5((call), #call, __FILE__, __LINE__)
