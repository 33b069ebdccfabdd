#include "comm/mpi/mpi_check.hpp"

#include <string>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("error {}", code);
  return std::string(text, static_cast<std::size_t>(length));
}

// "rank 2 on host n3"
std::string whoami() {
  int rank = -1, length = 0;
  char host[MPI_MAX_PROCESSOR_NAME] = {};
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Get_processor_name(host, &length);
  return fmt::format("rank {} on host {}", rank, host);
}

}  // namespace

void throw_mpi_error(int code, const char* call, const char* file, int line) {
  throw_error(ErrorKind::communication, "{}: {} failed ({}; {}:{})", whoami(), call,
              error_text(code), file, line);
}

void check_mpi_statuses(int code, std::span<const MPI_Status> statuses, const char* call,
                        const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses) {
      if (status.MPI_ERROR == MPI_SUCCESS || status.MPI_ERROR == MPI_ERR_PENDING) continue;
      throw_error(ErrorKind::communication, "{}: a transfer with rank {} failed ({}; {}, {}:{})",
                  whoami(), status.MPI_SOURCE, error_text(status.MPI_ERROR), call, file, line);
    }
  }
  throw_mpi_error(code, call, file, line);
}

}  // namespace dp
