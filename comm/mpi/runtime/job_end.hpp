// Ends the job even if MPI cannot.
//
// mpirun ends a job by messages to its daemons on the other hosts. If the network between them is
// cut, it waits for their answers forever, and the daemons that are cut off wait for its orders.
// Therefore the rank that ends a job leaves a small process behind. Some seconds later, that
// process kills the process that has started this rank (mpirun or one of its daemons), if it is
// still running. mpirun then has the exit code of a killed process; the true exit code is written
// into the file named by the variable DPTRAIN_EXIT_FILE. Programs that start mpirun set that
// variable.
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
