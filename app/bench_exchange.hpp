// dpbench's benches of the gradient exchange.
#pragma once

namespace dp {

// dpbench codec: speed of every codec, in GB/s of float, one core. Returns the exit code; errors
// are thrown as dp::Error.
int bench_codec(int argc, char** argv);

// dpbench exchange [CODEC...]: under mpirun, one table of the ring with each codec beside Open
// MPI's MPI_Allreduce, taken in turn. Initialises MPI; prints its errors itself. Returns the exit
// code.
int bench_exchange(int argc, char** argv);

}  // namespace dp
