// dpbench measures the speed of dptrain's components on this machine, and prints the machine's
// limits for comparison.
//
// Each bench is a row of the table below and two functions in benches.hpp.
#include <cstdlib>
#include <string>
#include <vector>

#include "app/bench/benches.hpp"
#include "app/options/options_print.hpp"
#include "app/options/options_row.hpp"
#include "app/options/options_values.hpp"
#include "app/options/options_words.hpp"
#include "app/process/process.hpp"
#include "app/process/rank_main.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/file_size_limit.hpp"
#include "kernels/base/standard_streams.hpp"

namespace {

struct Bench {
  const char* name;
  const char* help;
  void (*run)(const std::vector<std::string>& arguments, dp::Communicator& comm);
  std::string (*help_text)();
};

constexpr Bench kBenches[] = {
    {"layers", "training speed of the network alone, on all ranks at once", dp::bench_layers,
     dp::bench_layers_help},
    {"codec", "speed of each codec in GB/s, on one core or on a GPU", dp::bench_codec,
     dp::bench_codec_help},
    {"exchange",
     "time, bandwidths, bytes and errors of topologies and codecs, and of MPI_Allreduce",
     dp::bench_exchange, dp::bench_exchange_help},
    {"step", "measured and predicted time of training steps that sleep instead of computing",
     dp::bench_step, dp::bench_step_help}};

std::vector<dp::OptionRow> own_rows() {
  return {dp::call_row("version", "print the version, then end", [] {}),
          dp::call_row("help", "print this help, then end", [] {})};
}

const Bench* find_bench(const std::string& name) {
  for (const Bench& bench : kBenches) {
    if (name == bench.name) return &bench;
  }
  return nullptr;
}

std::string help_text() {
  std::string out =
      "dpbench BENCH [options]: measures one part of dptrain.\n"
      "\n"
      "  mpirun -np 1 dpbench layers --model resnet18 --batch 128 --threads 2\n"
      "  mpirun -np 4 --mca btl tcp,self dpbench exchange\n";
  dp::NamedTexts entries;
  for (const Bench& bench : kBenches) entries.emplace_back(bench.name, bench.help);
  dp::append_entries(out, "Benches; dpbench BENCH --help lists a bench's options", entries);
  dp::append_options(out, {{"Other options", own_rows()}});
  return dp::without_trailing_blanks(out);
}

// Answers that need no MPI; empty if a bench is to run.
std::string answer(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front() == "--help") return help_text();
  if (arguments.front() == "--version") return "dpbench " DP_VERSION "\n";
  const Bench* chosen = find_bench(arguments.front());
  return chosen != nullptr && dp::asks_for(arguments, "--help") ? chosen->help_text() : "";
}

int run(const std::vector<std::string>& arguments, dp::Communicator& comm) {
  const std::string& name = arguments.front();
  if (const Bench* chosen = find_bench(name); chosen != nullptr) {
    chosen->run({arguments.begin() + 1, arguments.end()}, comm);
  } else {
    std::vector<std::string> known;
    for (const Bench& bench : kBenches) known.emplace_back(bench.name);
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
  dp::open_standard_streams();
  dp::restart_with_openmp_settings(argv);
  dp::survive_file_size_limit();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const std::string text = answer(arguments); !text.empty()) {
    return dp::print_without_mpi("dpbench", text);
  }
  return dp::run_ranks("dpbench", dp::kDpbenchNames, argc, argv,
                       [&](dp::Communicator& comm) { return run(arguments, comm); });
}
