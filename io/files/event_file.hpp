// A file of events that TensorBoard reads: numbers of a run by step, and texts about it.
//
// The file is a sequence of records, each with an event:
//     length of the event   8 bytes, little-endian
//     its checksum          4 bytes: the masked CRC-32C of the 8 bytes before
//     event                 a message Event of TensorFlow's event.proto, in protobuf's encoding
//     its checksum          4 bytes
// The first event has the text "brain.Event:2". masked(c) = (c rotated right by 15) + 0xa282ead8.
// TensorBoard takes all files of a folder for one run, in the order of their names, which hold the
// time. An event that says "start" with a step makes it forget what earlier files have from that
// step on: so a run that goes on from a checkpoint does not repeat steps.
//
// Events are collected in memory; save() puts them into the file. Failures throw Error(data) with
// the file's name. After a save() that failed the file ends with a whole record, and the next
// save() tries again. A file that was removed or shortened in the meantime is not made again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

// Why a new run cannot write event files into that folder: it has some already, or it cannot be
// made; empty if nothing is known against it. The folder need not exist yet.
[[nodiscard]] std::string why_no_event_folder(const std::string& folder);

class EventFile {
 public:
  // The first save() makes the folder and a new file in it. The time is Unix time; 0 stands for
  // now.
  explicit EventFile(const std::string& folder, double unix_s = 0);

  [[nodiscard]] const std::string& path() const { return path_; }

  // The run goes on: what earlier files have from this step on does not count.
  void add_start(std::int64_t step);
  // Numbers that are not finite are left out.
  void add_scalars(std::int64_t step,
                   const std::vector<std::pair<std::string_view, double>>& scalars);
  // In Markdown.
  void add_text(const std::string& tag, std::string_view text);
  // What TensorBoard's page "hparams" shows of the run.
  void add_settings(const std::vector<std::pair<std::string, std::string>>& settings);

  // When the call returns, the events are in the file.
  void save();
  // Whether events that can wait, such as those of steps, should be saved now: every ten seconds.
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
