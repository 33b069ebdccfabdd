// The files that a run could not write. Training goes on without them; the program names them at
// its end.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "app/output/run_sink.hpp"

namespace dp {

class MissingFiles {
 public:
  explicit MissingFiles(RunSink& console) : console_(console) {}

  // Notes that `what` cannot be written, because of `why`. Warns, unless `what` is missing already,
  // for this or another reason. `state` is called at the end and returns what the file lacks. A
  // null `state` means that the whole file is missing.
  void note_missing(const std::string& what, const std::string& why,
                    const std::string& outlook = "training goes on without it",
                    std::function<std::string()> state = nullptr);
  // Adds the line to sentence().
  void note_at_end(const std::string& line) { missing_[line] = {}; }
  // Returns whether the file was missing until now.
  bool note_written(const std::string& what) { return missing_.erase(what) > 0; }
  [[nodiscard]] bool contains(const std::string& what) const { return missing_.contains(what); }
  // A sentence for the end of the run; empty if nothing is missing.
  [[nodiscard]] std::string sentence() const;

 private:
  struct File {
    std::string why;
    std::function<std::string()> state;
  };
  RunSink& console_;
  std::map<std::string, File> missing_;
};

}  // namespace dp
