// dpbench: what the parts of dptrain reach on this machine, beside the limits they work against.
#include <cstdio>
#include <string>

#include "app/bench_exchange.hpp"
#include "app/bench_layers.hpp"
#include "app/process.hpp"
#include "app/rank_main.hpp"
#include "kernels/base/error.hpp"

namespace {

constexpr const char* kHelp =
    "dpbench BENCH [options]: measures one part of dptrain.\n"
    "\n"
    "  layers     training images/s of the network alone, on all ranks at once\n"
    "  codec      GB/s of gradient per codec and direction, one core or a GPU (--device cuda)\n"
    "  exchange   every topology and codec beside MPI_Allreduce: time, bandwidths, bytes, errors\n"
    "\n"
    "  mpirun -np 1 dpbench layers --model resnet18 --batch 128 --threads 2\n"
    "  mpirun -np 4 --mca btl tcp,self dpbench exchange\n";

int run(int argc, char** argv, dp::Communicator& comm) {
  const std::string bench = argc > 1 ? argv[1] : "--help";
  if (bench == "--help" || bench == "-h") {
    if (comm.rank() == 0) std::fputs(kHelp, stdout);
    return 0;
  }
  if (bench == "layers") return dp::bench_layers(argc - 1, argv + 1, comm);
  if (bench == "codec") return comm.rank() == 0 ? dp::bench_codec(argc - 1, argv + 1) : 0;
  throw dp::AgreedError(dp::ErrorKind::usage,
                        "unknown bench '" + bench + "'; known: layers, codec, exchange");
}

}  // namespace

int main(int argc, char** argv) {
  dp::restart_with_short_spinning(argv);
  // This bench starts MPI itself.
  if (argc > 1 && std::string(argv[1]) == "exchange") {
    return dp::bench_exchange(argc - 1, argv + 1);
  }
  return dp::run_ranks("dpbench", argc, argv,
                       [&](dp::Communicator& comm) { return run(argc, argv, comm); });
}
