// A rank's set-up of its own process: waiting without spinning, its share of the host's cores, and
// its output. Signals are handled in stop_notice.hpp.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "comm/mpi/communicator.hpp"

namespace dp {

// Restarts the program once with other settings of OpenMP, which reads them before main(). Must be
// the first call in main, except for open_standard_streams. Returns if there is nothing to do.
//
// Sets GOMP_SPINCOUNT to 20000, unless the user has set it or an equivalent variable. By default,
// waiting threads spin for some milliseconds and take the cores from other ranks, the loader and
// the reducer. Without any spinning, threads wait in the kernel during the many short loops of a
// small network, and ResNet-20 is 5 % slower.
//
// Removes OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY. With them OpenMP binds this thread to a
// single core, and the threads of all ranks of a host to the same cores. The cores that these
// variables name become the affinity mask, which take_cpu_share() shares out.
void restart_with_openmp_settings(char** argv);

struct CpuShare {
  int cores_on_host = 1;  // the cores that this process may use
  int ranks_on_host = 1;  // the ranks that share them
  int threads = 1;        // as requested, or the rank's share: cores / ranks on them, at least 1
  double cores_per_rank = 1.0;
  std::string cores;   // "0-1": where this rank may run from now on
  std::string limits;  // "; the CPU quota is 1.5 cores": limits besides the host's cores
};

// Collective. Sets the affinity of the calling thread, and of threads that it starts, to the rank's
// share of the host's cores that this process may use (allowed_cores). If there are more ranks than
// cores, every rank may run on all of these cores. A rank that requests more threads than its share
// may also run on all of them. If wanted_threads is 0, the rank's share decides the number of
// threads.
//
// If ranks run under the same kernel and may use the same cores, they share these cores. They do so
// even if they seem to be on several hosts, such as containers or the hosts of a lab. CPU quotas,
// rounded up to whole cores, limit the threads in the same way: each is divided by the ranks in its
// cgroup. Quotas are read below `root`, see cpu_quotas. OMP_THREAD_LIMIT always limits the threads.
[[nodiscard]] CpuShare take_cpu_share(Communicator& comm, int wanted_threads,
                                      const std::filesystem::path& root = "/");

// A new descriptor of mpirun's own standard output (1) or error (2), which the caller closes; -1
// without mpirun and for ranks on other hosts.
[[nodiscard]] int open_launchers_stream(int number);

// Whether a terminal shows this program's output. mpirun gives every rank its own terminal, so
// under mpirun the question is whether mpirun has one. False for ranks on other hosts.
[[nodiscard]] bool output_is_watched();

// The words with which the program was started, separated by spaces.
[[nodiscard]] std::string command_line();

// Peak memory of this process so far.
[[nodiscard]] std::size_t peak_memory_bytes();

}  // namespace dp
