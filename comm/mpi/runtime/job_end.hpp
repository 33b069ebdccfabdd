// Ends the job even if MPI cannot.
//
// mpirun ends a job by messages to its daemons on the other hosts. If the network between them is
// cut, it waits for their answers forever, and the daemons that are cut off wait for its orders.
// Therefore the rank that ends a job leaves a small process behind. Some seconds later, that
// process kills mpirun, or the daemon that has started this rank, if it is still running. mpirun
// then has the exit code of a killed process; the true exit code is written into the file named by
// the variable DPTRAIN_EXIT_FILE. Programs that start mpirun set that variable.
#pragma once

namespace dp {

// Whether this rank is the first of its host to ask in this job, so that only one of several ranks
// reports a failure that all of them notice. True without mpirun.
[[nodiscard]] bool is_first_to_speak();

// Leaves the small process behind and writes the exit code. Call it before this rank ends the job.
void prepare_job_end(int exit_code);

// Does the same and ends the process at once, without destructors and without MPI.
[[noreturn]] void end_job_now(int exit_code);

}  // namespace dp
