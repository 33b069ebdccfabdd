// Ends the job even if MPI cannot.
//
// mpirun ends a job by messages to its daemons on the other hosts. If a link between hosts is cut,
// mpirun waits forever for the answers of the daemons beyond it, and these daemons wait for orders
// from mpirun. Therefore the rank that ends a job leaves a small process behind. This process waits
// for some seconds. It then kills the mpirun or daemon that has started the rank, unless that has
// ended. A killed mpirun does not return the rank's exit code. The rank therefore writes the code
// into a file, whose path the program that starts mpirun gives in the variable DPTRAIN_EXIT_FILE.
#pragma once

namespace dp {

// Whether this call is the first one on this host in this job. The first caller reports a failure
// that several ranks notice, and the others stay silent. Always true without mpirun.
[[nodiscard]] bool is_first_to_speak();

// Leaves the small process behind and writes the exit code. Call it before this rank ends the job.
void prepare_job_end(int exit_code);

// Does the same and ends the process at once, without destructors and without MPI.
[[noreturn]] void end_job_now(int exit_code);

}  // namespace dp
