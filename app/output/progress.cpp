#include "app/output/progress.hpp"

#include "app/output/progress_json.hpp"
#include "app/output/progress_text.hpp"
#include "app/process/process.hpp"

namespace dp {

std::unique_ptr<RunSink> make_progress(const Options& options) {
  if (options.progress == Options::ProgressForm::json) return std::make_unique<JsonProgress>();
  ConsoleMode mode = choose_console_mode(options.quiet);
  if (mode == ConsoleMode::live && !output_is_watched()) mode = ConsoleMode::lines;
  return std::make_unique<TextProgress>(mode, options.verbose);
}

}  // namespace dp
