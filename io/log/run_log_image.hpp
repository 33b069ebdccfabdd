// The run log's contents in memory, and the HDF5 file that holds them, as bytes.
//
// LogImage lets HDF5 lay the file out in memory, so no HDF5 call ever meets a full disk. The bytes
// are a complete file with room for more rows: the last chunk of a table is usually not full, and
// readers look only at the rows within the table's length. A LogImage knows the offsets of a
// table's next rows and of the table's length. If a file holds these bytes, a writer can therefore
// add new rows and then raise the length, which has eight bytes. All functions throw Error(data) if
// HDF5 fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/files/hdf5.hpp"
#include "io/log/run_log_rows.hpp"

namespace dp {

inline constexpr std::int64_t kLogFormatVersion = 1;

using LogValue = AttributeValue;

// The attributes of "/" (an empty name) or of a group, in the order in which they were first set.
struct LogGroup {
  std::string name;
  std::vector<std::pair<std::string, LogValue>> attributes;

  void set(const std::string& attribute, LogValue value);
  // The attribute's value; null if there is no such attribute or it has another type.
  template <class T>
  [[nodiscard]] const T* get(const std::string& attribute) const {
    const LogValue* value = find(attribute);
    return value == nullptr ? nullptr : std::get_if<T>(value);
  }

 private:
  [[nodiscard]] const LogValue* find(const std::string& attribute) const;
};

// A table's rows as they are in the file: eight bytes per column, without gaps.
struct LogTable {
  // Indices of the tables in LogContents. There may be no table of steps.
  enum : std::size_t { kEpochs, kRanks, kBuckets, kSessions, kTensors, kShares, kSteps };

  std::string name;
  std::span<const LogField> fields;
  std::vector<std::byte> rows = {};

  [[nodiscard]] std::size_t row_bytes() const { return 8 * fields.size(); }
  [[nodiscard]] std::size_t count() const { return rows.size() / row_bytes(); }
  // Appends a row, given as its struct.
  void append(const void* row);
  // A value of a column of whole numbers. The column must exist.
  [[nodiscard]] std::int64_t whole_number(std::size_t row, const std::string& column) const;
};

struct LogContents {
  std::vector<LogGroup> groups;
  std::vector<LogTable> tables;

  // The group must exist.
  [[nodiscard]] LogGroup& group(const std::string& name);
  [[nodiscard]] const LogGroup& group(const std::string& name) const;
};

// All tables, without rows.
[[nodiscard]] std::vector<LogTable> empty_log_tables();

class LogImage {
 public:
  // A table's place in the bytes. length_at and rows_at are 0 if the table has no rows, or if its
  // length is not where HDF5's file format puts it.
  struct Place {
    std::size_t length_at = 0;  // the number of rows, as a little-endian integer of eight bytes
    std::size_t rows_at = 0;    // the offset of row `first`
    std::size_t first = 0, end = 0;  // the range of rows in the last chunk
  };

  explicit LogImage(const LogContents& contents);

  // Valid while the image exists.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // One Place for each table, in the order of the tables.
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }

 private:
  void write_table(const LogTable& table);
  void find_places(const LogContents& contents);

  H5Handle file_;
  std::vector<H5Handle> tables_;
  std::span<const std::byte> bytes_;
  std::vector<Place> places_;
};

// Reads the contents of a log's file. Reads only the tables that `tables` names; columns that the
// file lacks are 0. Throws Error(data) if the file is not a run log of this format.
[[nodiscard]] LogContents read_log_image(std::span<const std::byte> file,
                                         std::vector<LogTable> tables);

}  // namespace dp
