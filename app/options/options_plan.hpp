// The keys of --plan: which steps it predicts. Each list gives a table for every choice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options_row.hpp"
#include "comm/rate/compress_choice.hpp"

namespace dp {

struct Options;

struct PlanOptions {
  std::vector<std::int64_t> ranks;           // empty: as many as were started
  std::vector<std::int64_t> batches;         // images per rank and step; empty: the run's
  std::vector<BitRate> rates;                // none is off; empty: as measured
  double delay_ms = 0;                       // one way, of the links that `rates` state
  std::vector<std::int64_t> sync;            // steps between two exchanges; empty: the run's
  std::vector<CompressChoice> codecs;        // empty: all (plan_choices.hpp)
  std::vector<std::string> topologies = {};  // empty: those that suit the ranks
};

// "q8,topk:ratio=0.01,ef=on,none": specs joined by commas, which are also inside a spec, as earlier
// versions had them. A part with an = and no : before it belongs to the spec before it.
[[nodiscard]] std::vector<std::string> split_specs(std::string_view list);

struct OptionContext;
[[nodiscard]] OptionRow plan_row(const OptionContext& context, Options& options);

}  // namespace dp
