// HDF5's C library with owners and exceptions.
//
// H5Handle owns an identifier and closes it; DP_CHECK_HDF5(call) gives the call's value or throws
// Error(data) with the system's reason, such as "No space left on device", where the library's
// error stack has one, else with its innermost description and the call. HDF5 is used from one
// thread at a time (Debian's library has no locks of its own).
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dp {

class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  H5Handle() = default;
  // Takes an identifier that DP_CHECK_HDF5 has let pass, and the function that closes its kind.
  H5Handle(hid_t id, Close closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept;
  H5Handle& operator=(H5Handle&& other) noexcept;
  H5Handle(const H5Handle&) = delete;
  H5Handle& operator=(const H5Handle&) = delete;
  ~H5Handle();  // closes, and says nothing if that fails

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  // Closes now; throws Error(data) if that fails. Closing twice does nothing.
  void close();
  // Lets the identifier be, open, for the rest of the process.
  void abandon() noexcept { id_ = H5I_INVALID_HID; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close closer_ = nullptr;
};

// To be called before all else. Stops HDF5 from printing its error stack on stderr (the exceptions
// carry its reason instead) and from closing files when the process ends: files that it could not
// write make it crash there.
void prepare_hdf5();

// All HDF5 calls announce failure by a negative value.
template <class T>
T check_hdf5(T value, const char* expression, const char* file, int line);
extern template int check_hdf5(int, const char*, const char*, int);
extern template hid_t check_hdf5(hid_t, const char*, const char*, int);

// Attributes of a file, group or data set; one that is there is replaced. Strings are UTF-8 of
// variable length, arrays of them one-dimensional.
void write_attribute(hid_t object, const std::string& name, const std::string& value);
void write_attribute(hid_t object, const std::string& name, std::span<const std::string> values);
void write_attribute(hid_t object, const std::string& name, std::int64_t value);
void write_attribute(hid_t object, const std::string& name, std::uint8_t value);
void write_attribute(hid_t object, const std::string& name, double value);
void write_attribute(hid_t object, const std::string& name, std::span<const double> values);

// A string attribute, or the first of an array of strings (empty where there is none); a scalar
// number. Throw Error(data) where there is no such attribute.
[[nodiscard]] std::string read_text_attribute(hid_t object, const std::string& name);
[[nodiscard]] double read_number_attribute(hid_t object, const std::string& name);

}  // namespace dp

#define DP_CHECK_HDF5(call) ::dp::check_hdf5((call), #call, __FILE__, __LINE__)
