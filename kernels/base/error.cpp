#include "kernels/base/error.hpp"

#include <exception>
#include <new>

namespace dp {

void assertion_failed(const char* expression, const std::string& message, const char* file,
                      int line) {
  throw_error(ErrorKind::internal,
              "{}:{}: the condition {} does not hold: {} (a bug in dptrain: please report it)",
              file, line, expression, message);
}

int exit_code_of_current_exception(std::string& message) {
  try {
    throw;
  } catch (const Error& error) {
    message = error.what();
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    message = "out of memory: try a smaller batch or model";
    return static_cast<int>(ErrorKind::device);
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception of unknown type";
  }
  return static_cast<int>(ErrorKind::internal);
}

}  // namespace dp
