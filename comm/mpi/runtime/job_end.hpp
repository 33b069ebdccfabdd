// How a process ends its job when MPI may not be able to.
//
// mpirun ends a job by messages to its daemons on the other hosts. If the network between them is
// cut, it waits for their answers for ever, and the daemons that are cut off wait for its orders.
// So whoever ends a job leaves a small process behind, which ends mpirun or the daemon that has
// started this rank if that still runs some seconds later. mpirun's own exit code is then that of a
// process that was killed; therefore the exit code is also written into the file that the variable
// DPTRAIN_EXIT_FILE names. Programs that start mpirun set it.
#pragma once

namespace dp {

// Whether this rank is the first of its host that asks in this job, so that one of several ranks
// that notice the same says it. True without mpirun.
[[nodiscard]] bool is_first_to_speak();

// Prepares the end of this rank, and so of its job, with that exit code.
void prepare_job_end(int exit_code);

// The same, and ends the process at once, without destructors and without MPI.
[[noreturn]] void end_job_now(int exit_code);

}  // namespace dp
