// If an MPI function does not return MPI_SUCCESS, DP_CHECK_MPI(call) throws Error(communication).
// The error contains the call, MPI's own text, rank and host. (Our communicators have
// MPI_ERRORS_RETURN.)
#pragma once

#include <mpi.h>

#include <span>

namespace dp {

[[noreturn]] void throw_mpi_error(int code, const char* call, const char* file, int line);

// For MPI_Testsome, MPI_Waitall and similar calls. If `code` is MPI_ERR_IN_STATUS, the cause is in
// the statuses, and the error message names this cause and the peer.
void check_mpi_statuses(int code, std::span<const MPI_Status> statuses, const char* call,
                        const char* file, int line);

}  // namespace dp

#define DP_CHECK_MPI(call)                                           \
  do {                                                               \
    const int dp_mpi_code = (call);                                  \
    if (dp_mpi_code != MPI_SUCCESS) {                                \
      ::dp::throw_mpi_error(dp_mpi_code, #call, __FILE__, __LINE__); \
    }                                                                \
  } while (false)
