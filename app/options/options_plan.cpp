#include "app/options/options_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "app/options/options.hpp"
#include "app/options/options_keyed.hpp"
#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::string joined(auto&& values) { return fmt::format("{}", fmt::join(values, "/")); }

OptionRow counts_row(std::string name, std::vector<std::int64_t>& field, WholeRange range,
                     std::string help, std::string shown_default) {
  return {.name = std::move(name),
          .placeholder = "N/...",
          .help = std::move(help),
          .allowed = "whole numbers joined by /, each from " + range.text(),
          .range = "each " + range.text(),
          .shown_default = std::move(shown_default),
          .set =
              [range, &field](std::string_view text) {
                field.clear();
                if (text.empty()) return;
                for (const std::string& part : split_at(text, '/')) {
                  field.push_back(parse_whole("", part, range));
                }
              },
          .get = [&field] { return joined(field); }};
}

OptionRow rates_row(std::vector<BitRate>& field) {
  return {.name = "rates",
          .placeholder = "RATE/...",
          .help = "rates of every host's link in each direction",
          .allowed = "rates joined by /, such as 10mbit/100mbit/1gbit",
          .shown_default = "as measured",
          .set =
              [&field](std::string_view text) {
                field.clear();
                if (text.empty()) return;
                for (const std::string& rate : split_at(text, '/')) {
                  field.push_back(parse_bit_rate("", rate));
                  if (field.back().bit_per_s == 0) throw_error(ErrorKind::usage, "off");
                }
              },
          .get = [&field] { return joined(field | std::views::transform(&BitRate::given)); }};
}

// Codecs may have keys themselves: codecs=q8/topk:ratio=0.1,ef=off.
OptionRow codecs_row(const OptionContext& context, std::vector<CompressChoice>& field) {
  return {.name = "codecs",
          .placeholder = "SPEC/...",
          .help = "codecs as --compress takes them",
          .allowed = "",  // the codecs' parser has its own messages
          .shown_default = "all, auto, and the run's",
          .takes_keys = true,
          .set =
              [parse = context.parse_compress, &field](std::string_view text) {
                field.clear();
                if (text.empty()) return;
                for (const std::string& spec : split_at(text, '/')) {
                  field.push_back(parse ? parse(spec) : CompressChoice{.text = spec});
                }
              },
          .get = [&field] { return joined(field | std::views::transform(&CompressChoice::text)); }};
}

OptionRow topologies_row(const OptionContext& context, std::vector<std::string>& field) {
  return {
      .name = "topologies",
      .placeholder = "NAME/...",
      .help = "topologies",
      .allowed = fmt::format("one or more of {} joined by /", fmt::join(context.topologies, ", ")),
      .shown_default = "ring/direct, with more than 8 ranks also grid",
      .set =
          [known = context.topologies, &field](std::string_view text) {
            field.clear();
            if (text.empty()) return;
            const std::vector<std::string> names = split_at(text, '/');
            for (const std::string& name : names) {
              const bool is_known = std::ranges::find(known, name) != known.end();
              // A table without an OptionContext does not know the names. It accepts every name,
              // because the value was checked before.
              if (!is_known && known.size() > 1) throw_error(ErrorKind::usage, "unknown");
            }
            field = names;
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

OptionRow plan_row(const OptionContext& context, Options& options) {
  OptionRow head = {
      .name = "plan",
      .placeholder = "[key=value,...]",
      .help =
          "predict a step's time with other codecs, topologies, ranks and links from a few steps "
          "of this run, print tables ranked by time and bytes, then end; a/b is a list of choices",
      .allowed = "on, or key=value,...",
      .has_optional_value = true,
      .set =
          [&options](std::string_view value) {
            static_cast<void>(parse_choice("--plan", value, {"on"}));
            options.action = Options::Action::plan;
          },
      // Without --plan the option has no value.
      .get = [&options] { return options.action == Options::Action::plan ? "on" : ""; }};
  const auto keys_of = [&context](Options& of) -> std::vector<OptionRow> {
    PlanOptions& plan = of.plan;
    return {
        counts_row("ranks", plan.ranks, {1, 64},
                   "numbers of ranks, each on its own host; computing times are from the "
                   "ranks that were started",
                   "the ranks that were started"),
        counts_row("batches", plan.batches, {1, 65536},
                   "images per rank and step; computing times are scaled accordingly", "the run's"),
        rates_row(plan.rates),
        real_row("delay-ms", plan.delay_ms, {.least = 0, .most = 10000},
                 "one-way delay, in milliseconds, of links with a rate of rates="),
        counts_row("sync", plan.sync, {1, 1'000'000},
                   "steps between two exchanges (--sync-every); 1: every step", "the run's"),
        codecs_row(context, plan.codecs),
        topologies_row(context, plan.topologies)};
  };
  return keyed_row(std::move(head), keys_of, options, "on");
}

}  // namespace dp
