// Processes that cannot take part because a rank has their identity in MPI. Children of a rank, and
// the processes of a launcher that mpirun has started, inherit the identity with the environment:
// the second process that starts MPI with it would crash. A rank therefore notes itself in an
// environment variable, and claims its identity.
#pragma once

#include <string_view>

namespace dp::capi {

// After MPI has started. The variable is DPTRAIN_COMM_RANK=process:rank:size:job of MPI.
void note_rank(int rank, int size);

// Throws Error(usage) if this process descends from a rank of the same job that still runs. A job
// of its own, which a rank has started by mpirun, is none.
void require_no_child();

// Before and after MPI has started: MPI makes an identity for a process without one. Throws
// Error(usage) if a process that still runs has claimed the same identity; the sentence says to
// start `command` by mpirun instead. The claim ends with release_identity(), or with the process.
void claim_identity(std::string_view command);
void release_identity();

}  // namespace dp::capi
