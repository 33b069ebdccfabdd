// Refuses a process if another process already has the same MPI identity. Children of a rank, and
// the processes of a launcher that mpirun has started, inherit the identity with the environment.
// The second process that starts MPI with the same identity would crash. Therefore a rank records
// itself in an environment variable, and claims its identity.
#pragma once

#include <string_view>

namespace dp::capi {

// Sets DPTRAIN_COMM_RANK=process:rank:size:job, where job is MPI's name of the job. Call it after
// MPI has started.
void note_rank(int rank, int size);

// Throws Error(usage) if this process descends from a running rank of the same job. A separate job
// that a rank has started with mpirun is allowed.
void require_no_child();

// Call it before MPI starts and again afterwards, since MPI makes an identity for a process that
// has none. Throws Error(usage) if a running process has claimed the same identity. The message
// advises starting `command` by mpirun instead. The claim ends with release_identity() or with the
// process.
void claim_identity(std::string_view command);
void release_identity();

}  // namespace dp::capi
