// Outline: RunLog::State holds the contents in memory and a LogFile that saves them. create() makes
// the file at once; resume() restores the contents from a checkpoint's bytes, and renames another
// file that has the log's name. The first save() then writes the new file.
#include "io/log/run_log.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>

#include "io/files/new_file.hpp"
#include "io/log/run_log_earlier.hpp"
#include "io/log/run_log_file.hpp"
#include "io/log/run_log_image.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The lists that rows refer to.
enum List : std::size_t { kHosts, kDevices, kCodecs, kTopologies };
constexpr std::array<std::string_view, 4> kLists = {"hosts", "devices", "codec_names",
                                                    "topology_names"};

std::string iso8601(double unix_s) {
  const auto seconds = static_cast<std::time_t>(std::floor(unix_s));
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text, length};
}

double start_of(const RunInfo& info) {
  if (info.start_unix_s > 0) return info.start_unix_s;
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// An identifier by which a run recognises its own log.
std::string new_run_id() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

// "dptrain-20240131-235959"
std::string fresh_stem() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stem[64];
  const std::size_t length = std::strftime(stem, sizeof(stem), "dptrain-%Y%m%d-%H%M%S", &local);
  return {stem, length};
}

// Creates the empty file and returns its path. If `path` is "auto", chooses a new name.
std::string create_log_file(const std::string& path) {
  if (path == "auto") return create_fresh_file(Setting{"log"}, fresh_stem(), "h5");
  create_new_file(Setting{"log"}, path);
  return path;
}

// Sets the attributes that every session of a run writes.
void set_attributes(LogContents& contents, const RunInfo& info, const std::string& path) {
  LogGroup& root = contents.group("");
  root.set("format_version", kLogFormatVersion);
  root.set("dptrain_version", info.dptrain_version);
  root.set("git_revision", info.git_revision);
  root.set("command_line", info.command_line);
  root.set("world_size", checked_cast<std::int64_t>(info.world_size));
  root.set("mpi_version", info.mpi_version);
  root.set("finished", std::uint8_t{0});
  root.set("resumed_from", info.resumed_from);
  LogGroup& config = contents.group("config");
  for (const auto& [name, value] : info.config) config.set(name, name == "log" ? path : value);
  LogGroup& model = contents.group("model");
  model.set("name", info.model_name);
  model.set("parameters", checked_cast<std::int64_t>(info.parameters));
  model.set("gradient_bytes", checked_cast<std::int64_t>(info.gradient_bytes));
  model.set("buckets", checked_cast<std::int64_t>(info.buckets));
}

LogContents new_contents(const RunInfo& info) {
  LogContents contents;
  contents.groups = {{.name = "", .attributes = {}},
                     {.name = "config", .attributes = {}},
                     {.name = "model", .attributes = {}}};
  LogGroup& root = contents.group("");
  root.set("run_id", new_run_id());
  root.set("started_at", iso8601(start_of(info)));
  contents.tables = empty_log_tables();
  if (!info.has_steps) contents.tables.pop_back();
  return contents;
}

}  // namespace

void check_log_path(const std::string& path) {
  if (path != "auto") {
    check_new_file(Setting{"log"}, path);
  } else if (::access(".", W_OK | X_OK) != 0) {
    throw_cannot_create(Setting{"log"}, path, errno);
  }
}

struct RunLog::State {
  LogFile file;
  LogContents contents;
  // In the file, a list keeps all its earlier values. index_of[list][i] is the index in the file of
  // the i-th value of the last set_list(). Rows are written with the indices of the file.
  std::array<std::vector<std::size_t>, kLists.size()> index_of;
  bool is_closed = false;

  bool are_attributes_changed = true;

  State(const std::string& path, LogContents all, const RunInfo& info, bool is_there)
      : file(path, is_there), contents(std::move(all)) {
    set_attributes(contents, info, path);
    set_lists(info);
    add_session(info);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    try {
      if (!is_closed && has_changes()) save();
    } catch (...) {  // the file is unchanged
    }
  }

  // ---- what is in the log

  // Values that the list had before stay in it, because earlier rows refer to them.
  void set_list(std::size_t list, std::span<const std::string> values) {
    const std::string name(kLists[list]);
    LogGroup& root = contents.group("");
    std::vector<std::string> all;
    if (const auto* before = root.get<std::vector<std::string>>(name)) all = *before;
    const auto earlier_end = static_cast<std::ptrdiff_t>(all.size());
    index_of[list].clear();
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::size_t index = i;
      if (i >= all.size() || all[i] != values[i]) {
        const auto end = all.begin() + earlier_end;
        const auto it = std::find(all.begin(), end, values[i]);
        index = it != end ? static_cast<std::size_t>(it - all.begin()) : all.size();
        if (it == end) all.push_back(values[i]);
      }
      index_of[list].push_back(index);
    }
    root.set(name, std::move(all));
    are_attributes_changed = true;
  }

  void set_lists(const RunInfo& info) {
    set_list(kHosts, info.hosts);
    set_list(kDevices, info.devices);
    set_list(kCodecs, info.codec_names);
    set_list(kTopologies, info.topology_names);
  }

  void add_session(const RunInfo& info) {
    const SessionRow session{.start = start_of(info),
                             .first_epoch = info.first_epoch,
                             .first_step = info.first_step,
                             .world_size = checked_cast<std::int64_t>(info.world_size)};
    contents.tables[LogTable::kSessions].append(&session);
  }

  [[nodiscard]] std::int64_t listed(List list, std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    return i < index_of[list].size() ? static_cast<std::int64_t>(index_of[list][i]) : index;
  }
  [[nodiscard]] EpochRow in_file(EpochRow row) const { return row; }
  [[nodiscard]] SessionRow in_file(SessionRow row) const { return row; }
  [[nodiscard]] TensorRow in_file(TensorRow row) const { return row; }
  [[nodiscard]] ShareRow in_file(ShareRow row) const { return row; }
  [[nodiscard]] StepRow in_file(StepRow row) const { return row; }
  [[nodiscard]] RankRow in_file(RankRow row) const {
    row.host = listed(kHosts, row.host);
    row.device = listed(kDevices, row.device);
    return row;
  }
  [[nodiscard]] BucketRow in_file(BucketRow row) const {
    row.codec = listed(kCodecs, row.codec);
    row.topology = listed(kTopologies, row.topology);
    return row;
  }

  template <class Row>
  void append(std::size_t table, std::span<const Row> rows) {
    DP_ASSERT(!is_closed, "the log {} is closed already", file.path());
    DP_ASSERT(table < contents.tables.size(), "the log {} has no table of steps", file.path());
    for (const Row& row : rows) {
      const Row its = in_file(row);
      contents.tables[table].append(&its);
    }
  }

  void set_attribute(const std::string& group, const std::string& name, LogValue value) {
    DP_ASSERT(!is_closed, "the log {} is closed already", file.path());
    contents.group(group == "/" ? "" : group.substr(1)).set(name, std::move(value));
    are_attributes_changed = true;
  }

  // ---- the file

  [[nodiscard]] bool has_changes() const {
    return are_attributes_changed || !file.has_rows(contents);
  }

  void save() {
    if (!has_changes()) return;
    try {
      file.save(contents, are_attributes_changed);
      are_attributes_changed = false;
    } catch (const Error& error) {
      throw SettingError(Setting{"log"}, file.path(),
                         fmt::format("cannot be written: {}", error.what()), ErrorKind::data);
    }
  }

  void close(bool is_finished) {
    if (is_finished) set_attribute("/", "finished", std::uint8_t{1});
    save();
    is_closed = true;
  }
};

RunLog RunLog::create(const std::string& path, const RunInfo& info) {
  prepare_hdf5();
  const std::string made = create_log_file(path);
  try {
    auto state = std::make_unique<State>(made, new_contents(info), info, true);
    state->file.save(state->contents, true);
    state->are_attributes_changed = false;
    return RunLog(std::move(state));
  } catch (const Error& error) {
    ::unlink(made.c_str());
    throw SettingError(Setting{"log"}, made, fmt::format("cannot be created: {}", error.what()),
                       ErrorKind::data);
  }
}

RunLog RunLog::resume(const std::string& path, std::span<const std::byte> image,
                      const RunInfo& info) {
  prepare_hdf5();
  std::optional<LogContents> contents = image.empty() ? new_contents(info) : read_run_log(image);
  if (!contents) {
    throw SettingError(Setting{"log"}, path, "the checkpoint's copy of it is damaged",
                       ErrorKind::data);
  }
  const auto* config_path = contents->group("config").get<std::string>("log");
  const std::string earlier_path = config_path == nullptr ? "auto" : *config_path;
  std::string own_path = path == "auto" ? earlier_path : path;
  if (own_path == "auto") own_path = fresh_stem() + ".h5";
  const std::optional<LogContents> there = read_run_log(own_path);
  const bool is_own = there && is_same_run(*there, *contents);
  if (is_own) {
    ::unlink((own_path + ".part").c_str());  // left behind by a killed process
  } else if (struct stat ignored{}; ::lstat(own_path.c_str(), &ignored) == 0) {
    if (!image.empty() && !is_same_file(own_path, earlier_path)) {
      throw_file_exists(Setting{"log"}, own_path);
    }
    try {
      static_cast<void>(move_aside(Setting{"log"}, own_path));
    } catch (const Error&) {  // save() will report that another file has the name
    }
  }
  put_back(*contents, info);
  return RunLog(std::make_unique<State>(own_path, std::move(*contents), info, is_own));
}

RunLog::RunLog(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunLog::RunLog(RunLog&&) noexcept = default;
RunLog& RunLog::operator=(RunLog&&) noexcept = default;
RunLog::~RunLog() = default;

const std::string& RunLog::path() const noexcept { return state_->file.path(); }

void RunLog::append(std::span<const EpochRow> rows) { state_->append(LogTable::kEpochs, rows); }
void RunLog::append(std::span<const RankRow> rows) { state_->append(LogTable::kRanks, rows); }
void RunLog::append(std::span<const BucketRow> rows) { state_->append(LogTable::kBuckets, rows); }
void RunLog::append(std::span<const SessionRow> rows) { state_->append(LogTable::kSessions, rows); }
void RunLog::append(std::span<const TensorRow> rows) { state_->append(LogTable::kTensors, rows); }
void RunLog::append(std::span<const ShareRow> rows) { state_->append(LogTable::kShares, rows); }
void RunLog::append(std::span<const StepRow> rows) { state_->append(LogTable::kSteps, rows); }

void RunLog::set_attribute(const std::string& group, const std::string& name,
                           const std::string& value) {
  state_->set_attribute(group, name, value);
}
void RunLog::set_attribute(const std::string& group, const std::string& name,
                           std::span<const std::string> values) {
  state_->set_attribute(group, name, std::vector<std::string>(values.begin(), values.end()));
}
void RunLog::set_attribute(const std::string& group, const std::string& name, double value) {
  state_->set_attribute(group, name, value);
}
void RunLog::set_attribute(const std::string& group, const std::string& name,
                           std::span<const double> values) {
  state_->set_attribute(group, name, std::vector<double>(values.begin(), values.end()));
}
void RunLog::set_list(const std::string& name, std::span<const std::string> values) {
  const auto it = std::ranges::find(kLists, name);
  DP_ASSERT(it != kLists.end(), "the log has no list {} to which rows refer", name);
  state_->set_list(static_cast<std::size_t>(it - kLists.begin()), values);
}

void RunLog::save() { state_->save(); }
bool RunLog::is_save_due() const { return state_->file.is_due() && state_->has_changes(); }

std::vector<std::byte> RunLog::image() const {
  const LogImage image(state_->contents);
  return {image.bytes().begin(), image.bytes().end()};
}

void RunLog::close(bool is_finished) { state_->close(is_finished); }

}  // namespace dp
