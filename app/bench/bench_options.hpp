// The options of dpbench's benches: a table each, read like dptrain's (options_words.hpp).
#pragma once

#include <string>
#include <vector>

#include "app/options/options_print.hpp"
#include "app/options/options_row.hpp"
#include "comm/mpi/communicator.hpp"

namespace dp {

struct BenchUsage {
  std::string name;         // "codec"
  std::string other_words;  // "[SPEC...]"; empty: the bench takes options alone
  std::string help;         // what it measures, in lines
  NamedTexts codecs = {};   // listed after the options; empty: the bench takes none
  // Bound to the bench's settings. --help is not among them.
  std::vector<OptionRow> rows;
};

// What --help prints of a bench.
[[nodiscard]] std::string bench_help(BenchUsage usage);

// Collective. Sets what the arguments say and returns the words that are no options. All ranks
// throw the same AgreedError(usage).
[[nodiscard]] std::vector<std::string> read_bench_options(BenchUsage usage,
                                                          const std::vector<std::string>& arguments,
                                                          Communicator& comm);

// The processor time of all threads of this process so far.
[[nodiscard]] double cpu_seconds();

// The median of some times; they may be in any order.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace dp
