// A file of events that TensorBoard reads: a run's numbers, each for a training step, and texts
// about the run.
//
// The file is a sequence of records, each with an event:
//     length of the event   8 bytes, little-endian
//     its checksum          4 bytes: the masked CRC-32C of the 8 bytes before
//     event                 a message Event of TensorFlow's event.proto, in protobuf's encoding
//     its checksum          4 bytes
// masked(c) = (c rotated right by 15) + 0xa282ead8. The first event has the text "brain.Event:2".
//
// TensorBoard reads all files of a folder as one run, in the order of their names, which contain
// the time. When it finds an event "start" with a step, it drops what earlier files have from that
// step on. A run that resumes from a checkpoint writes this event, so no step appears twice.
//
// Events are collected in memory; save() appends them to the file. Failures throw Error(data) with
// the file's name. After a save() that failed, the file ends with a whole record, and the next
// save() tries again. A file that was removed or shortened in the meantime is not created again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

// Returns the reason why a new run cannot write event files into that folder, for example that the
// folder already has event files or cannot be created. Returns an empty text if the run can write
// there, as far as is known. The folder need not exist yet.
[[nodiscard]] std::string why_no_event_folder(const std::string& folder);

class EventFile {
 public:
  // The first save() creates the folder and a new file in it. `unix_s` is Unix time; 0 means now.
  explicit EventFile(const std::string& folder, double unix_s = 0);

  [[nodiscard]] const std::string& path() const { return path_; }

  // The run resumes: TensorBoard drops what earlier files have from this step on.
  void add_start(std::int64_t step);
  // Numbers that are not finite are skipped.
  void add_scalars(std::int64_t step,
                   const std::vector<std::pair<std::string_view, double>>& scalars);
  // `text` is Markdown.
  void add_text(const std::string& tag, std::string_view text);
  // Settings of the run for TensorBoard's page "hparams".
  void add_settings(const std::vector<std::pair<std::string, std::string>>& settings);

  // When the call returns, the events are in the file.
  void save();
  // Whether there are unsaved events and the last save was ten seconds ago or more. Save events
  // that can wait, such as events of steps, only then.
  [[nodiscard]] bool is_save_due() const;

 private:
  void make();
  void add_event(std::string_view fields);
  [[nodiscard]] double now_s() const;

  std::string path_;
  double unix_s_;            // for tests; 0: the clock
  std::string unsaved_;      // records
  std::uint64_t saved_ = 0;  // bytes in the file
  bool is_made_ = false;
  double saved_at_s_ = 0;
};

}  // namespace dp
