// Prints what probe_link and probe_burst find, for tests in a lab: Mbit/s, ms one way, uncertainty,
// seconds that the first took, and bytes.
#include <chrono>
#include <cstdio>

#include "comm/mpi/runtime/mpi_runtime.hpp"
#include "comm/network/link_probe.hpp"

int main(int argc, char** argv) {
  dp::MpiRuntime mpi(&argc, &argv);
  try {
    dp::Communicator comm;
    const auto begin = std::chrono::steady_clock::now();
    const dp::LinkProbe link = dp::probe_link(comm);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const double burst_bytes = dp::probe_burst(comm, link);
    if (comm.rank() == 0) {
      std::printf("%.6g %.6g %.4f %.2f %.0f\n", link.bytes_per_s * 8e-6, link.latency_s * 1e3,
                  link.uncertainty, taken.count(), burst_bytes);
    }
  } catch (...) {
    return mpi.end_with_error("link_probe_print");
  }
  return 0;
}
