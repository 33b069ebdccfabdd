#include "app/output/missing_files.hpp"

#include <fmt/format.h>

#include <utility>

namespace dp {

void MissingFiles::note_missing(const std::string& what, const std::string& why,
                                const std::string& outlook, std::function<std::string()> state) {
  const bool is_news = missing_.insert_or_assign(what, File{why, std::move(state)}).second;
  if (is_news) console_.warn(fmt::format("{}; {}", why, outlook));
}

std::string MissingFiles::sentence() const {
  std::string files;
  for (const auto& [what, file] : missing_) {
    files += (files.empty() ? "" : "; ") + what;
    if (file.why.empty()) continue;
    files += fmt::format(" {} ({})", file.state ? file.state() : "is missing", file.why);
  }
  if (files.empty()) return {};
  return "the training is complete, but some files are not: " + files;
}

}  // namespace dp
