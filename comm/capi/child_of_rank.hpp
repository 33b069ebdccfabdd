// Children of a rank inherit its environment, and with it the rank's identity in MPI: a child that
// started MPI would crash. A rank therefore notes itself in an environment variable.
#pragma once

namespace dp::capi {

// After MPI has started. The variable is DPTRAIN_COMM_RANK=process:rank:size:job of MPI.
void note_rank(int rank, int size);

// Throws Error(usage) if this process descends from a rank of the same job that still runs. A job
// of its own, which a rank has started by mpirun, is none.
void require_no_child();

}  // namespace dp::capi
