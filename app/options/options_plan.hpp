// The keys of --plan, which choose the training steps whose cost is predicted. The plan prints one
// table for each combination of `ranks`, `batches` and `rates` (bandwidths). The rows of a table
// are the combinations of `sync`, `codecs` and `topologies`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options_row.hpp"
#include "comm/rate/compress_choice.hpp"

namespace dp {

struct Options;

struct PlanOptions {
  std::vector<std::int64_t> ranks;           // empty: the number of ranks of this run
  std::vector<std::int64_t> batches;         // images per rank and step; empty: the run's
  std::vector<BitRate> rates;                // none of them "off"; empty: as measured
  double delay_ms = 0;                       // one way, on the links that `rates` describe
  std::vector<std::int64_t> sync;            // steps between two exchanges; empty: the run's
  std::vector<CompressChoice> codecs;        // empty: all (plan_choices.hpp)
  std::vector<std::string> topologies = {};  // empty: those that suit the number of ranks
};

// Splits "q8,topk:ratio=0.01,ef=on,none": specs joined by commas, as earlier versions wrote them. A
// spec may contain commas itself. A part that has an "=", but no ":" before the "=", belongs to the
// spec in front of it.
[[nodiscard]] std::vector<std::string> split_specs(std::string_view list);

struct OptionContext;
[[nodiscard]] OptionRow plan_row(const OptionContext& context, Options& options);

}  // namespace dp
