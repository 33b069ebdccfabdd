#include "app/bench_options.hpp"

#include <algorithm>
#include <cstdio>

#include "app/options_words.hpp"
#include "app/rank_main.hpp"

namespace dp {

std::optional<std::vector<std::string>> read_bench_options(
    BenchUsage usage, const std::vector<std::string>& arguments, Communicator& comm) {
  const std::string program = "dpbench " + usage.name;
  OptionTable table = {{"Options", std::move(usage.rows)}};
  table.front().rows.push_back(call_row("help", "print this help, then end", [] {}));
  if (asks_for(arguments, "--help")) {
    std::string text =
        fmt::format("{} [options]{}{}\n\n{}", program, usage.other_words.empty() ? "" : " ",
                    usage.other_words, usage.help);
    append_options(text, table);
    append_entries(text, "Codecs; dptrain --help lists their keys", usage.codecs);
    if (comm.rank() == 0) std::fputs(without_trailing_blanks(text).c_str(), stdout);
    return std::nullopt;
  }
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace dp
