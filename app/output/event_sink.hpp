// Writes the events of --tensorboard, a folder that TensorBoard reads.
#pragma once

#include "app/output/missing_files.hpp"
#include "app/output/run_description.hpp"
#include "app/output/run_sink.hpp"
#include "io/files/event_file.hpp"

namespace dp {

class EventSink final : public RunSink {
 public:
  // Throws Error(data) if the file cannot be created, unless the run is resumed. Later, a file that
  // cannot be written counts as missing.
  EventSink(const RunDescription& run, MissingFiles& missing);

  void logged_steps(std::span<const StepRow> rows) override;
  void epoch(const EpochEnd& epoch) override;
  void close(bool) override { save(); }

 private:
  void save();

  EventFile file_;
  MissingFiles& missing_;
};

}  // namespace dp
