#include "app/bench/bench_options.hpp"

#include <time.h>

#include <algorithm>

#include "app/options/options_words.hpp"
#include "app/process/rank_main.hpp"

namespace dp {

namespace {

// The row of --help only makes the option appear in the list. Its action is empty, because dpbench
// itself answers --help.
OptionTable table_of(BenchUsage& usage) {
  usage.rows.push_back(call_row("help", "print this help, then end", [] {}));
  return {{"Options", std::move(usage.rows)}};
}

}  // namespace

std::string bench_help(BenchUsage usage) {
  std::string text =
      fmt::format("dpbench {} [options]{}{}\n\n{}", usage.name,
                  usage.other_words.empty() ? "" : " ", usage.other_words, usage.help);
  append_options(text, table_of(usage));
  append_entries(text, "Codecs; dptrain --help exchange lists their keys", usage.codecs);
  return without_trailing_blanks(text);
}

std::vector<std::string> read_bench_options(BenchUsage usage,
                                            const std::vector<std::string>& arguments,
                                            Communicator& comm) {
  const std::string program = "dpbench " + usage.name;
  const OptionTable table = table_of(usage);
  std::vector<std::string> words;
  together(comm, kDpbenchNames, [&] {
    const CommandLine line = {
        .table = table, .program = program, .takes_words = !usage.other_words.empty()};
    GivenWords given = line.split(arguments);
    for (const auto& [row, value] : given.options) set_option(*row, value);
    words = std::move(given.others);
  });
  return words;
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace dp
