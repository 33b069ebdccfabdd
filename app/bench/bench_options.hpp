// Options of dpbench's benches: one table per bench, read like dptrain's (options_words.hpp).
#pragma once

#include <string>
#include <vector>

#include "app/options/options_print.hpp"
#include "app/options/options_row.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

struct BenchUsage {
  std::string name;         // "codec"
  std::string other_words;  // "[SPEC...]"; empty: the bench only takes options
  std::string help;         // what the bench measures; may have several lines
  NamedTexts codecs = {};   // printed after the options; empty: the bench takes no codecs
  // All options except --help. Each is bound to a setting of the bench.
  std::vector<OptionRow> rows;
};

// The text of a bench's --help.
[[nodiscard]] std::string bench_help(BenchUsage usage);

// Collective. Sets the bench's settings from the arguments, and returns the words that are not
// options. All ranks throw the same AgreedError(usage).
[[nodiscard]] std::vector<std::string> read_bench_options(BenchUsage usage,
                                                          const std::vector<std::string>& arguments,
                                                          Communicator& comm);

// Processor time of all threads of this process so far.
[[nodiscard]] double cpu_seconds();

// Median of the values, which need not be sorted.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace dp
