#include "app/planning/check_disk.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/files/checkpoint_folder.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr double kLeast_bytes = 100e6;

// The folder, or the nearest existing folder above it.
fs::path nearest(fs::path folder) {
  std::error_code code;
  while (!folder.empty() && !fs::exists(fs::symlink_status(folder, code))) {
    folder = folder.parent_path();
  }
  return folder.empty() ? "." : folder;
}

// "DIR: writable, 12.3 GB free", or what is wrong with the folder.
DiskState describe_folder(const fs::path& folder, double needed_bytes) {
  const std::string probe = (folder / fmt::format(".dptrain-check-{}", ::getpid())).string();
  std::FILE* opened = std::fopen(probe.c_str(), "wx");
  if (opened == nullptr) return {folder.string() + ": cannot be written", true};
  std::fclose(opened);
  std::remove(probe.c_str());
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return {folder.string() + ": writable", false};
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  return {fmt::format("{}: writable, {} free", folder.string(), format_bytes(free)),
          free < std::max(needed_bytes, kLeast_bytes)};
}

// Checks the disk space for this run's checkpoints. The space of existing checkpoint files counts
// as free, because new checkpoints replace them.
DiskState describe_checkpoints(const Options& options, const CheckpointNeed& need) {
  const double parts =
      static_cast<double>(options.checkpoint_keep + 1) * static_cast<double>(need.ranks);
  double there = 0;
  try {
    for (const ShardFile& file : list_shards(options.checkpoint)) {
      std::error_code code;
      const auto bytes = fs::file_size(fs::path(options.checkpoint) / name_of(file), code);
      if (!code) there += static_cast<double>(bytes);
    }
  } catch (const Error&) {
    // The search for a checkpoint has already reported that the folder cannot be read.
  }
  const double needed = std::max(0.0, parts * need.part_bytes - there);
  DiskState state = describe_folder(nearest(options.checkpoint), needed);
  if (need.part_bytes > 0) {
    state.text += fmt::format(
        ", {} needed ({} checkpoints, one more than --checkpoint-keep, of {} "
        "rank{})",
        format_bytes(needed), format_count(options.checkpoint_keep + 1), need.ranks,
        need.ranks == 1 ? "" : "s");
  }
  return state;
}

}  // namespace

DiskState describe_disk(const Options& options, bool is_rank_0, const CheckpointNeed& need) {
  DiskState all;
  const auto add = [&](const char* what, const DiskState& state) {
    all.text += fmt::format("{}{} in {}", all.text.empty() ? "" : "; ", what, state.text);
    all.is_bad = all.is_bad || state.is_bad;
  };
  const auto add_file = [&](const char* what, const fs::path& file) {
    if (file == "none") return;
    add(what, describe_folder(file.has_parent_path() ? file.parent_path() : ".", 0));
  };
  if (is_rank_0) {
    add_file("log", options.log == "auto" ? "log.h5" : options.log);
    add_file("trace", options.trace);
    add_file("weights", options.export_file);
  }
  if (options.has_checkpoints()) add("checkpoints", describe_checkpoints(options, need));
  if (is_rank_0 && options.tensorboard != "none") {
    add("events", describe_folder(nearest(options.tensorboard), 0));
  }
  if (all.text.empty()) all.text = "nothing is written";
  return all;
}

}  // namespace dp
