#include "io/files/checkpoint_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

// Parses a file name from its front.
class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}
  bool word(std::string_view word) {
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  template <class Number>
  bool number(Number& value, int base = 10) {
    const auto [stop, error] =
        std::from_chars(left_.data(), left_.data() + left_.size(), value, base);
    if (error != std::errc()) return false;
    left_.remove_prefix(static_cast<std::size_t>(stop - left_.data()));
    return true;
  }
  [[nodiscard]] std::string_view left() const { return left_; }

 private:
  std::string_view left_;
};

std::string stem_of(const ShardFile& file) {
  const CheckpointId& id = file.checkpoint;
  return fmt::format("step{:09}.rank{}of{}.{:08x}", id.step, file.rank, id.ranks, id.attempt);
}

// Names of files with more ranks than this are rejected, because a reader looks for the parts of
// all ranks that a name claims.
constexpr std::uint32_t kMostRanks = 65'536;

// The parts of the name of a checkpoint's file. The file may be half-written or complete.
struct AnyFile {
  CheckpointId checkpoint;
  std::uint32_t rank = 0;
  std::string_view ending;
  bool is_log = false;
};

std::optional<AnyFile> parse(std::string_view name) {
  AnyFile file;
  Reader reader(name);
  CheckpointId& id = file.checkpoint;
  if (!reader.word("step") || !reader.number(id.step) || !reader.word(".")) return std::nullopt;
  if (reader.word("rank")) {
    if (!reader.number(file.rank) || !reader.word("of") || !reader.number(id.ranks) ||
        !reader.word(".") || file.rank >= id.ranks || id.ranks > kMostRanks) {
      return std::nullopt;
    }
  } else {
    file.is_log = true;
  }
  if (!reader.number(id.attempt, 16)) return std::nullopt;
  file.ending = reader.left();
  return file;
}

template <class Use>
void for_each_file(const std::string& folder, Use use) {
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (const auto file = parse(name)) use(name, *file);
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw SettingError(Setting{"checkpoint"}, folder,
                       fmt::format("cannot be read: {}", code.message()), ErrorKind::data);
  }
}

}  // namespace

std::string name_of(const ShardFile& file) {
  return stem_of(file) + (file.is_complete ? ".ckpt" : ".waiting");
}

std::string part_name_of(const ShardFile& file) { return stem_of(file) + ".part"; }

std::string log_name_of(const CheckpointId& id) {
  return fmt::format("step{:09}.{:08x}.log.h5", id.step, id.attempt);
}

std::optional<ShardFile> parse_shard_name(std::string_view name) {
  const auto file = parse(name);
  if (!file || file->is_log) return std::nullopt;
  ShardFile shard = {.checkpoint = file->checkpoint, .rank = file->rank};
  shard.is_complete = file->ending == ".ckpt";
  if (name_of(shard) != name) return std::nullopt;
  return shard;
}

void prepare_checkpoint_folder(const std::string& folder) {
  std::error_code code;
  const fs::path whole = fs::absolute(folder, code).lexically_normal();
  std::vector<fs::path> missing;
  for (fs::path at = whole; at.has_relative_path() && !fs::exists(at, code);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  fs::create_directories(folder, code);
  const auto refuse = [&](const std::string& why) {
    throw SettingError(Setting{"checkpoint"}, folder, why, ErrorKind::data);
  };
  if (code) refuse(fmt::format("cannot be created: {}", code.message()));
  // Without this sync, a new folder and its checkpoints may be gone after a loss of power.
  for (const fs::path& made : missing) {
    try {
      if (made.has_filename()) sync_folder_of(made.string());
    } catch (const Error& error) {
      refuse(fmt::format("cannot be synced to the disk: {}", error.what()));
    }
  }
  if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    refuse(fmt::format("cannot be written: {}", std::strerror(errno)));
  }
}

namespace {

// The ranks of a run share a read lock on one byte of the folder. The byte's offset follows from
// the number of the attempt, so runs can tell their locks apart. Linux allows locks on folders, at
// any offset. An open file description lock is not lost when another descriptor of the folder is
// closed.
struct flock byte_lock(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;  // 0: to the end
  return lock;
}

bool is_locked_by_others(int folder, off_t start, off_t length) {
  struct flock lock = byte_lock(F_WRLCK, start, length);
  return ::fcntl(folder, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace

CheckpointLock::CheckpointLock(const std::string& folder, std::uint32_t attempt,
                               std::chrono::duration<double> patience)
    : folder_(open_file(folder, O_RDONLY | O_DIRECTORY)) {
  using Clock = std::chrono::steady_clock;
  const off_t place = off_t{attempt} + 1;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  for (;;) {
    struct flock mine = byte_lock(F_RDLCK, place, 1);
    if (::fcntl(folder_.get(), F_OFD_SETLK, &mine) != 0) return;  // the file system has no locks
    if (!is_locked_by_others(folder_.get(), 0, place) &&
        !is_locked_by_others(folder_.get(), place + 1, 0)) {
      return;
    }
    if (Clock::now() >= end) break;
    // Two runs that begin at the same moment each see the other's lock. Each releases its own lock
    // and waits for a different time, so that one of them finds the folder free.
    mine.l_type = F_UNLCK;
    ::fcntl(folder_.get(), F_OFD_SETLK, &mine);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + attempt % 80));
  }
  throw SettingError(Setting{"checkpoint"}, folder,
                     "is in use by another run on this host: wait until it has ended, or give "
                     "another folder",
                     ErrorKind::data);
}

std::vector<ShardFile> list_shards(const std::string& folder) {
  std::vector<ShardFile> shards;
  for_each_file(folder, [&](const std::string& name, const AnyFile&) {
    if (const auto shard = parse_shard_name(name)) shards.push_back(*shard);
  });
  return shards;
}

void remove_checkpoints(const std::string& folder, std::span<const CheckpointId> kept) {
  const auto is_kept = [&](const AnyFile& file) {
    const CheckpointId& id = file.checkpoint;
    if (file.ending.ends_with(".part")) return false;
    return std::ranges::any_of(kept, [&](const CheckpointId& one) {
      return one.step == id.step && one.attempt == id.attempt;
    });
  };
  std::vector<std::string> names;
  for_each_file(folder, [&](const std::string& name, const AnyFile& file) {
    if (!is_kept(file)) names.push_back(name);
  });
  // Errors are ignored: another rank of this host may remove the same file.
  for (const std::string& name : names) ::unlink((fs::path(folder) / name).c_str());
}

}  // namespace dp
