#include "app/options/options_output.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::int64_t kMany = 1'000'000'000;

OptionRow trace_steps_row(Options& options) {
  constexpr WholeRange kFirst{0, 1'000'000'000}, kCount{1, 1000};
  const std::string allowed = fmt::format("FIRST:COUNT, with FIRST from {} and COUNT from {}",
                                          kFirst.text(), kCount.text());
  return {
      .name = "trace-steps",
      .placeholder = "FIRST:COUNT",
      .help = "steps in --trace: COUNT steps after the first FIRST; if not given, 5:20",
      .allowed = allowed,
      .range = fmt::format("COUNT: {}", kCount.text()),
      .only_with = {.option = "trace", .others = {"none"}, .words = "--trace FILE.json"},
      .set =
          [=, &options](std::string_view value) {
            const std::size_t colon = std::min(value.find(':'), value.size());
            const std::string_view count = value.substr(std::min(colon + 1, value.size()));
            try {
              options.trace_first = parse_whole("", value.substr(0, colon), kFirst);
              options.trace_steps = parse_whole("", count, kCount);
            } catch (const Error&) {
              throw_error(ErrorKind::usage, "--trace-steps {}: must be {}", shown(value), allowed);
            }
          },
      .get = [&options] { return fmt::format("{}:{}", options.trace_first, options.trace_steps); }};
}

}  // namespace

std::vector<OptionRow> output_rows(Options& options) {
  return {
      text_row("log", options.log, "FILE.h5", "a path, auto or none",
               "the run's log, a new file; auto: dptrain-DATE-TIME.h5; none: no log"),
      whole_row("log-steps", options.log_steps, {0, kMany}, "log every N-th step; 0: epochs only"),
      text_row("export", options.export_file, "FILE.h5", "a path or none",
               "write the last and the best weights after each epoch to a new file, with "
               "PyTorch's names; none: no file"),
      text_row("trace", options.trace, "FILE.json", "a path or none",
               "write a timeline of all ranks to a new file, for ui.perfetto.dev or "
               "chrome://tracing; none: no file"),
      trace_steps_row(options),
      text_row("tensorboard", options.tensorboard, "DIR", "the path of a folder or none",
               "write TensorBoard events of epochs and logged steps into this folder; none: no "
               "events"),
      flag_row("quiet", options.quiet,
               "print only warnings, errors and, with --epochs 0, the result"),
      flag_row("verbose", options.verbose, "also print a line for each checkpoint"),
      choice_row("progress", options.progress, {"text", "json"},
                 "form of the output; text: for people; json: one object per event and line")};
}

void resolve_output(Options& options, const LayerOf& layer_of) {
  if (options.progress != Options::ProgressForm::json) return;
  if (options.quiet) {
    throw_error(ErrorKind::usage, "--progress json: not with --quiet, which prints no events");
  }
  const bool trains = options.action == Options::Action::train;
  if (!trains && options.action != Options::Action::print_config &&
      layer_of("progress") == Layer::command_line) {
    throw_error(ErrorKind::usage, "--progress json: not with --{}, which prints tables",
                options.action == Options::Action::plan ? "plan" : "check");
  }
}

}  // namespace dp
