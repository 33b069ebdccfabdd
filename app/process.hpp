// What a rank arranges about its own process: waiting without spinning, the processor cores that
// are its share of the host, what it prints. What a signal leads to is in stop_notice.hpp.
#pragma once

#include <cstddef>
#include <string>

#include "comm/communicator.hpp"

namespace dp {

// Restarts the program once with GOMP_SPINCOUNT=20000 where the user has set nothing of the kind:
// OpenMP reads it before main(). Threads that spin for long while they wait take the cores from
// other ranks, the loader and the reducer (the default is some milliseconds); without any spinning
// the many short loops of a small network wait for the kernel (ResNet-20: 5 % slower). Call first
// thing in main; returns where nothing is to be done.
void restart_with_short_spinning(char** argv);

// Lets a write beyond the limit on the size of files (ulimit -f) fail like one to a full disk,
// instead of ending the process without a word.
void survive_file_size_limit();

// Throws Error(data) where not all that was printed has reached standard output. A reader that has
// gone away (dptrain | head) is no error.
void check_output();

struct CpuShare {
  int cores_on_host = 1;  // that this process may use
  int threads = 1;        // as wanted, or the rank's share: cores / ranks on them, at least 1
  double cores_per_rank = 1.0;
  std::string cores;  // "0-1": where this rank may run from now on
};

// Widens the affinity of the calling thread (and of threads that it starts) to the rank's share of
// the host's cores: mpirun binds a rank to a single core where there are one or two. With more
// ranks than cores every rank may run everywhere.
// A rank that wants more threads than its share may run everywhere, too; 0: as many as its share.
// Ranks share cores that run under the same kernel and may use the same ones, be it as several
// hosts: containers, or the hosts of a lab in one machine. Collective.
[[nodiscard]] CpuShare take_cpu_share(Communicator& comm, int wanted_threads);

// A new descriptor of mpirun's own standard output (1) or error (2), to be closed; -1 without
// mpirun and for ranks on other hosts.
[[nodiscard]] int open_launchers_stream(int number);

// Whether a terminal shows this program's output. mpirun gives every rank a terminal of its own, so
// under it the question is whether mpirun has one; false for ranks on other hosts.
[[nodiscard]] bool output_is_watched();

// How the program was started, its words separated by spaces.
[[nodiscard]] std::string command_line();

// The most memory that this process has used so far.
[[nodiscard]] std::size_t peak_memory_bytes();

}  // namespace dp
