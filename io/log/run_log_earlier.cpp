#include "io/log/run_log_earlier.hpp"

#include "io/files/trial.hpp"
#include "io/files/whole_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Drops those rows of a table in which `column` is at least `first`.
void cut(LogTable& table, const char* column, std::int64_t first) {
  std::vector<std::byte> kept;
  for (std::size_t row = 0; row < table.count(); ++row) {
    if (table.whole_number(row, column) >= first) continue;
    const auto at = table.rows.begin() + static_cast<std::ptrdiff_t>(row * table.row_bytes());
    kept.insert(kept.end(), at, at + static_cast<std::ptrdiff_t>(table.row_bytes()));
  }
  table.rows = std::move(kept);
}

// Adds the tables that an earlier version of dptrain did not write, without rows.
void add_later_tables(LogContents& log) {
  for (const std::size_t later : {LogTable::kTensors, LogTable::kShares}) {
    const auto place = log.tables.begin() + static_cast<std::ptrdiff_t>(later);
    LogTable table = empty_log_tables()[later];
    if (place == log.tables.end() || place->name != table.name) {
      log.tables.insert(place, std::move(table));
    }
  }
}

}  // namespace

// Reads a log from a file's bytes. Returns nullopt if the bytes are not a run log.
std::optional<LogContents> read_run_log(std::span<const std::byte> bytes) {
  try {
    LogContents log = read_log_image(bytes, empty_log_tables());
    const auto* version = log.group("").get<std::int64_t>("format_version");
    const bool is_whole = log.tables.size() > LogTable::kSessions;
    if (is_whole) add_later_tables(log);
    if (version != nullptr && *version == kLogFormatVersion && is_whole) return log;
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::optional<LogContents> read_run_log(const std::string& path) {
  try {
    const std::vector<std::byte> bytes = read_whole_file(path);
    try_in_child(path, [&] { static_cast<void>(read_run_log(bytes)); });
    return read_run_log(bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Cuts the log's contents back to the point from which the run resumes.
void put_back(LogContents& contents, const RunInfo& info) {
  for (const std::size_t table :
       {LogTable::kEpochs, LogTable::kRanks, LogTable::kBuckets, LogTable::kTensors}) {
    cut(contents.tables[table], "epoch", info.first_epoch);
  }
  // A change of shares that is decided after s steps applies from step s + 2 on (steps are counted
  // from 1). A checkpoint after s steps contains this change. So the rows of step first_step + 2
  // stay.
  cut(contents.tables[LogTable::kShares], "step", info.first_step + 3);
  if (contents.tables.size() > LogTable::kSteps) {
    cut(contents.tables[LogTable::kSteps], "step", info.first_step + 1);
  } else if (info.has_steps) {
    contents.tables.push_back(empty_log_tables().back());
  }
}

bool is_same_run(const LogContents& one, const LogContents& other) {
  const auto* id = one.group("").get<std::string>("run_id");
  const auto* its = other.group("").get<std::string>("run_id");
  return id != nullptr && its != nullptr && *id == *its;
}

}  // namespace dp
