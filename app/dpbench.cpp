// dpbench: what the parts of dptrain reach on this machine, beside the limits they work against.
//
// A bench is a row below and a function in benches.hpp.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "app/benches.hpp"
#include "app/options_print.hpp"
#include "app/options_values.hpp"
#include "app/process.hpp"
#include "app/rank_main.hpp"
#include "kernels/base/error.hpp"

namespace {

struct Bench {
  const char* name;
  const char* help;
  void (*run)(const std::vector<std::string>& arguments, dp::Communicator& comm);
};

constexpr Bench kBenches[] = {
    {"layers", "images/s that the network alone trains, on all ranks at once", dp::bench_layers},
    {"codec", "GB/s of gradients that each codec encodes and decodes, on one core or on a GPU",
     dp::bench_codec},
    {"exchange",
     "time, bandwidths, bytes and errors of topologies and codecs, beside MPI_Allreduce",
     dp::bench_exchange}};

std::string help_text() {
  std::string out =
      "dpbench BENCH [options]: measures one part of dptrain.\n"
      "\n"
      "  mpirun -np 1 dpbench layers --model resnet18 --batch 128 --threads 2\n"
      "  mpirun -np 4 --mca btl tcp,self dpbench exchange\n";
  dp::NamedTexts entries;
  for (const Bench& bench : kBenches) entries.emplace_back(bench.name, bench.help);
  dp::append_entries(out, "Benches; dpbench BENCH --help lists a bench's options", entries);
  return dp::without_trailing_blanks(out);
}

int run(const std::vector<std::string>& arguments, dp::Communicator& comm) {
  const std::string name = arguments.empty() ? "--help" : arguments.front();
  std::vector<std::string> known;
  const Bench* chosen = nullptr;
  for (const Bench& bench : kBenches) {
    known.emplace_back(bench.name);
    if (name == bench.name) chosen = &bench;
  }
  if (chosen != nullptr) {
    chosen->run({arguments.begin() + 1, arguments.end()}, comm);
  } else if (name == "--help") {
    if (comm.rank() == 0) std::fputs(help_text().c_str(), stdout);
  } else {
    const std::string near = dp::nearest(name, known);
    throw dp::AgreedError(
        dp::ErrorKind::usage,
        fmt::format("{}: must be the name of a bench: {}; {}", dp::shown(name),
                    dp::joined_choices(known),
                    near.empty() ? "see dpbench --help" : fmt::format("did you mean {}?", near)));
  }
  comm.together([] { dp::check_output(); });
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  dp::restart_with_short_spinning(argv);
  return dp::run_ranks("dpbench", dp::kDpbenchNames, argc, argv, [&](dp::Communicator& comm) {
    return run({argv + 1, argv + argc}, comm);
  });
}
