#include "io/log/run_log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "io/files/new_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

// Saves that can wait take at most the fraction kSaveShare of the time.
constexpr double kSaveShare = 0.01, kLeastPauseS = 1.0;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Creates PATH.part, PATH-2.part, ... and sets `name` to the name of the new file.
FileDescriptor open_part(const std::string& path, std::string& name) {
  constexpr int kMostNames = 100;
  name = path + ".part";
  for (int n = 2;; ++n) {
    const int file = ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (file >= 0) return FileDescriptor(file);
    if (errno != EEXIST || n > kMostNames) throw Error(ErrorKind::data, std::strerror(errno));
    name = fmt::format("{}-{}.part", path, n);
  }
}

}  // namespace

LogFile::LogFile(std::string path, bool is_there) : path_(std::move(path)) {
  if (is_there) file_ = open_file(path_, O_RDONLY);  // only to recognise it later
}

bool LogFile::has_rows(const LogContents& contents) const {
  if (must_replace_) return false;
  for (std::size_t t = 0; t < contents.tables.size(); ++t) {
    if (t >= saved_.size() || contents.tables[t].count() != saved_[t]) return false;
  }
  return true;
}

bool LogFile::is_due() const {
  return seconds_since(saved_at_) >= std::max(kLeastPauseS, save_s_ / kSaveShare);
}

void LogFile::save(const LogContents& contents, bool is_whole) {
  const Clock::time_point begin = Clock::now();
  const auto note_time = [&] {
    save_s_ = seconds_since(begin);
    saved_at_ = Clock::now();
  };
  must_replace_ = must_replace_ || is_whole;
  try {
    if (!add_in_place(contents)) replace(contents);
  } catch (...) {
    must_replace_ = true;
    note_time();
    throw;
  }
  note_time();
}

// Whether new rows are the only change since the last save, and the file has room for them.
bool LogFile::has_places(const LogContents& contents) const {
  if (must_replace_ || !names_file(path_, file_)) return false;
  for (std::size_t t = 0; t < saved_.size(); ++t) {
    const std::size_t count = contents.tables[t].count();
    if (count != saved_[t] && (saved_[t] < places_[t].first || count > places_[t].end)) {
      return false;
    }
  }
  return true;
}

// Readers do not see new rows before the table's length is raised. A length has eight bytes, which
// are written after the rows are on the disk. The length of the first table, the epochs, is raised
// last. So if readers see an epoch, they also see its rows in the other tables. Returns false if
// there is no room or a write fails.
bool LogFile::add_in_place(const LogContents& contents) {
  if (!has_places(contents)) return false;
  try {
    for (std::size_t t = 0; t < saved_.size(); ++t) {
      const LogTable& table = contents.tables[t];
      const std::size_t bytes = table.row_bytes();
      if (table.count() == saved_[t]) continue;
      write_all(file_, std::span(table.rows).subspan(saved_[t] * bytes),
                places_[t].rows_at + (saved_[t] - places_[t].first) * bytes);
    }
    sync_file(file_);
    for (std::size_t t = saved_.size(); t-- > 0;) {
      const std::uint64_t count = contents.tables[t].count();
      if (count == saved_[t]) continue;
      write_all(file_, std::as_bytes(std::span(&count, 1)), places_[t].length_at);
    }
    sync_file(file_);
  } catch (const Error&) {
    return false;
  }
  note_saved(contents);
  return true;
}

// Writes a new file and gives it the log's name.
void LogFile::replace(const LogContents& contents) {
  struct stat ignored {};
  const bool is_there = ::lstat(path_.c_str(), &ignored) == 0;
  if (is_there && !names_file(path_, file_)) {
    throw Error(ErrorKind::data, "another file has this name by now");
  }
  const LogImage image(contents);
  std::string part;
  FileDescriptor fresh = open_part(path_, part);
  try {
    write_all(fresh, image.bytes(), 0);
    sync_file(fresh);
    if (!is_there) {
      rename_to_new_file(Setting{"log"}, part, path_);
    } else if (std::rename(part.c_str(), path_.c_str()) != 0) {
      throw Error(ErrorKind::data, std::strerror(errno));
    }
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
  file_ = std::move(fresh);
  places_ = image.places();
  note_saved(contents);
  sync_folder_of(path_);
  must_replace_ = false;
}

void LogFile::note_saved(const LogContents& contents) {
  saved_.clear();
  for (const LogTable& table : contents.tables) saved_.push_back(table.count());
}

}  // namespace dp
