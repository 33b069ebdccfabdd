#include "app/options/options_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "app/options/options.hpp"
#include "app/options/options_values.hpp"
#include "app/process/option_names.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::string joined(const auto& values) { return fmt::format("{}", fmt::join(values, ",")); }

// Without --plan it is not set.
OptionRow plan_row(OptionRow row, const Options& options) {
  if (row.shown_default.empty()) row.shown_default = row.get();
  row.get = [get = row.get, &options] {
    return options.action == Options::Action::plan ? get() : std::string();
  };
  return row;
}

OptionRow counts_row(std::string name, std::vector<std::int64_t>& field, WholeRange range,
                     std::string help, std::string shown_default) {
  const std::string option = "--" + name;
  const std::string allowed = "whole numbers joined by commas, each from " + range.text();
  return {.name = std::move(name),
          .placeholder = "N,...",
          .help = std::move(help),
          .allowed = allowed,
          .range = "each " + range.text(),
          .shown_default = std::move(shown_default),
          .set =
              [option, allowed, range, &field](std::string_view text) {
                try {
                  field.clear();
                  for (const std::string& part : split_at_commas(text)) {
                    field.push_back(parse_whole(option, part, range));
                  }
                } catch (const Error&) {
                  throw_error(ErrorKind::usage, "{} {}: must be {}", option, shown(text), allowed);
                }
              },
          .get = [&field] { return joined(field); }};
}

OptionRow rates_row(std::vector<std::string>& field) {
  const std::string allowed = "rates joined by commas, such as 10mbit,100mbit,1gbit";
  return {.name = "plan-rates",
          .placeholder = "RATE,...",
          .help =
              "rates of every host's link in each direction, such as 10mbit,100mbit; without this "
              "option the network between the ranks is measured",
          .allowed = allowed,
          .shown_default = "as measured",
          .set =
              [allowed, &field](std::string_view text) {
                field = split_at_commas(text);
                for (const std::string& rate : field) {
                  double bit_per_s = 0;
                  try {
                    bit_per_s = parse_bit_rate("--plan-rates", rate);
                  } catch (const Error&) {
                    // Told below.
                  }
                  if (bit_per_s > 0) continue;
                  throw_error(ErrorKind::usage, "--plan-rates {}: must be {}", shown(text),
                              allowed);
                }
              },
          .get = [&field] { return joined(field); }};
}

OptionRow codecs_row(const OptionContext& context, std::vector<std::string>& field) {
  return {.name = "plan-codecs",
          .placeholder = "SPEC,...",
          .help = "codecs as --compress takes them, joined by commas",
          .allowed = "codecs joined by commas",
          .shown_default = "all, auto, and the run's",
          .set =
              [check = context.check_compress, &field](std::string_view text) {
                field = split_specs(text);
                for (const std::string& spec : field) {
                  try {
                    if (check) check(spec);
                  } catch (const Error& error) {
                    throw_error(ErrorKind::usage, "--plan-codecs: {}", error.what());
                  }
                }
              },
          .get = [&field] { return joined(field); }};
}

OptionRow topologies_row(const OptionContext& context, std::vector<std::string>& field) {
  const std::string allowed = "one or more of " +
                              fmt::format("{}", fmt::join(context.topologies, ", ")) +
                              " joined by commas";
  return {.name = "plan-topologies",
          .placeholder = "NAME,...",
          .help = "topologies, joined by commas",
          .allowed = allowed,
          .set =
              [known = context.topologies, allowed, &field](std::string_view text) {
                field = split_at_commas(text);
                for (const std::string& name : field) {
                  if (std::ranges::find(known, name) != known.end()) continue;
                  throw_error(ErrorKind::usage, "--plan-topologies {}: must be {}", shown(text),
                              allowed);
                }
              },
          .get = [&field] { return joined(field); }};
}

}  // namespace

std::vector<std::string> split_specs(std::string_view list) {
  std::vector<std::string> specs;
  for (const std::string& part : split_at_commas(list)) {
    const std::size_t equals = part.find('='), colon = part.find(':');
    if (!specs.empty() && equals != std::string::npos && equals < colon) {
      specs.back() += "," + part;
    } else {
      specs.push_back(part);
    }
  }
  return specs;
}

std::vector<OptionRow> plan_rows(const OptionContext& context, Options& options) {
  PlanOptions& plan = options.plan;
  std::vector<OptionRow> rows = {
      counts_row("plan-ranks", plan.ranks, {1, 64},
                 "numbers of ranks, each on a host of its own; a number that was not started "
                 "takes its computation from the ranks that were",
                 "the ranks that were started"),
      counts_row("plan-batches", plan.batches, {1, 65536},
                 "numbers of images per rank and step; times of computation are scaled",
                 "the run's"),
      rates_row(plan.rates),
      real_row("plan-delay-ms", plan.delay_ms, {.least = 0, .most = 10000},
               "one-way delay of the links that --plan-rates states, in milliseconds"),
      counts_row("plan-sync", plan.sync, {1, 1'000'000},
                 "numbers of steps between two exchanges, as --sync-every has them; 1: an exchange "
                 "at every step",
                 "the run's"),
      codecs_row(context, plan.codecs),
      topologies_row(context, plan.topologies)};
  for (OptionRow& row : rows) row = plan_row(std::move(row), options);
  return rows;
}

}  // namespace dp
