// dpbench's benches of the gradient exchange.
#pragma once

namespace dp {

// dpbench codec [--device auto|cpu|cuda] [--mb X] [SPEC...]: speed of the codecs named, or of every
// one, in GB/s of float, on one core or on a GPU; X is the size of the GPU's large segment, in 10^6
// bytes. Returns the exit code; errors are thrown as dp::Error.
int bench_codec(int argc, char** argv);

// dpbench exchange [options] [CODEC...]: under mpirun, one table of topologies x codecs x sizes
// beside Open MPI's MPI_Allreduce, taken in turn; --help lists the options. Initialises MPI; prints
// its errors itself. Returns the exit code.
int bench_exchange(int argc, char** argv);

}  // namespace dp
