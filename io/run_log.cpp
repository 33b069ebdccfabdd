#include "io/run_log.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>

#include "io/hdf5.hpp"
#include "io/new_file.hpp"
#include "io/whole_file.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr hsize_t kChunkRows = 1'024;

hid_t native_type(LogType type) {
  switch (type) {
    case LogType::int64:
      return H5T_NATIVE_INT64;
    case LogType::uint64:
      return H5T_NATIVE_UINT64;
    case LogType::float64:
      return H5T_NATIVE_DOUBLE;
  }
  throw_error(ErrorKind::internal, "no HDF5 type for a column of type {}", static_cast<int>(type));
}

std::string iso8601(double unix_s) {
  const auto seconds = static_cast<std::time_t>(std::floor(unix_s));
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text, length};
}

// A one-dimensional data set of compound rows that grows at its end.
class Table {
 public:
  Table() = default;
  // Makes it, or opens the one that is in the file.
  Table(hid_t file, const std::string& name, std::size_t row_bytes,
        std::span<const LogField> fields, bool is_new) {
    memory_type_ = {DP_CHECK_HDF5(H5Tcreate(H5T_COMPOUND, row_bytes)), H5Tclose};
    for (const LogField& field : fields) {
      DP_CHECK_HDF5(
          H5Tinsert(memory_type_.get(), field.name.c_str(), field.offset, native_type(field.type)));
    }
    if (is_new) {
      make(file, name, fields);
      return;
    }
    data_ = {DP_CHECK_HDF5(H5Dopen2(file, name.c_str(), H5P_DEFAULT)), H5Dclose};
    const H5Handle space(DP_CHECK_HDF5(H5Dget_space(data_.get())), H5Sclose);
    DP_CHECK_HDF5(H5Sget_simple_extent_dims(space.get(), &rows_, nullptr));
  }

  void append(const void* rows, hsize_t count) {
    const hsize_t size = rows_ + count;
    DP_CHECK_HDF5(H5Dset_extent(data_.get(), &size));
    const H5Handle file_space(DP_CHECK_HDF5(H5Dget_space(data_.get())), H5Sclose);
    DP_CHECK_HDF5(
        H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &rows_, nullptr, &count, nullptr));
    const H5Handle memory_space(DP_CHECK_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    DP_CHECK_HDF5(H5Dwrite(data_.get(), memory_type_.get(), memory_space.get(), file_space.get(),
                           H5P_DEFAULT, rows));
    rows_ = size;
  }

  void close() {
    data_.close();
    memory_type_.close();
  }
  void abandon() noexcept { data_.abandon(); }

 private:
  void make(hid_t file, const std::string& name, std::span<const LogField> fields) {
    std::vector<std::string> units;
    for (const LogField& field : fields) units.push_back(field.unit);
    const H5Handle file_type(DP_CHECK_HDF5(H5Tcopy(memory_type_.get())), H5Tclose);
    DP_CHECK_HDF5(H5Tpack(file_type.get()));
    const hsize_t none = 0, unlimited = H5S_UNLIMITED;
    const H5Handle space(DP_CHECK_HDF5(H5Screate_simple(1, &none, &unlimited)), H5Sclose);
    const H5Handle layout(DP_CHECK_HDF5(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    DP_CHECK_HDF5(H5Pset_chunk(layout.get(), 1, &kChunkRows));
    // A chunk gets its place in the file when the table grows, not only when it is flushed.
    // make_room() relies on that.
    DP_CHECK_HDF5(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY));
    DP_CHECK_HDF5(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER));
    data_ = {DP_CHECK_HDF5(H5Dcreate2(file, name.c_str(), file_type.get(), space.get(), H5P_DEFAULT,
                                      layout.get(), H5P_DEFAULT)),
             H5Dclose};
    write_attribute(data_.get(), "units", std::span<const std::string>(units));
  }

  H5Handle memory_type_, data_;
  hsize_t rows_ = 0;
};

double start_of(const RunInfo& info) {
  if (info.start_unix_s > 0) return info.start_unix_s;
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Makes the empty file and returns its path, which is a new name for "auto".
std::string create_log_file(const std::string& path) {
  if (path != "auto") {
    create_new_file(Setting::log, path);
    return path;
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stem[64];
  const std::size_t length = std::strftime(stem, sizeof(stem), "dptrain-%Y%m%d-%H%M%S", &local);
  return create_fresh_file(Setting::log, std::string(stem, length), "h5");
}

}  // namespace

void check_log_path(const std::string& path) {
  if (path != "auto") {
    check_new_file(Setting::log, path);
  } else if (::access(".", W_OK | X_OK) != 0) {
    throw_cannot_create(Setting::log, path, errno);
  }
}

struct RunLog::State {
  std::string path;
  H5Handle file;
  Table epochs, ranks, buckets, sessions, steps;
  bool has_steps = false;

  State(const std::string& log_path, const RunInfo& info, bool is_new)
      : path(log_path), has_steps(info.has_steps) {
    try {
      open(info, is_new);
    } catch (...) {
      abandon();
      throw;
    }
  }

  void open(const RunInfo& info, bool is_new) {
    const H5Handle access(DP_CHECK_HDF5(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
    // Readers must be able to open the file while we write it, and some network file systems have
    // no locks.
    DP_CHECK_HDF5(H5Pset_file_locking(access.get(), false, true));
    file = {DP_CHECK_HDF5(is_new ? H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())
                                 : H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get())),
            H5Fclose};
    const double start = start_of(info);
    if (is_new) {
      write_root(info, start);
      write_groups(info);
    } else {
      write_session(info);
    }
    open_table<EpochRow>(epochs, "epochs", is_new);
    open_table<RankRow>(ranks, "ranks", is_new);
    open_table<BucketRow>(buckets, "buckets", is_new);
    open_table<SessionRow>(sessions, "sessions", is_new);
    if (has_steps) {
      const bool has_table =
          !is_new && DP_CHECK_HDF5(H5Lexists(file.get(), "steps", H5P_DEFAULT)) > 0;
      open_table<StepRow>(steps, "steps", !has_table);
    }
    const SessionRow session{.start = start,
                             .first_epoch = info.first_epoch,
                             .first_step = info.first_step,
                             .world_size = checked_cast<std::int64_t>(info.world_size)};
    sessions.append(&session, 1);
    flush();
  }

  template <class Row>
  void open_table(Table& table, const char* name, bool is_new) {
    table = {file.get(), name, sizeof(Row), log_fields<Row>(), is_new};
  }

  // What may be another than in the sessions before.
  void write_session(const RunInfo& info) {
    const hid_t root = file.get();
    write_attribute(root, "dptrain_version", info.dptrain_version);
    write_attribute(root, "git_revision", info.git_revision);
    write_attribute(root, "command_line", info.command_line);
    write_attribute(root, "world_size", checked_cast<std::int64_t>(info.world_size));
    write_attribute(root, "hosts", std::span(info.hosts));
    write_attribute(root, "devices", std::span(info.devices));
    write_attribute(root, "mpi_version", info.mpi_version);
    write_attribute(root, "finished", std::uint8_t{0});
    write_attribute(root, "resumed_from", info.resumed_from);
    write_attribute(root, "codec_names", std::span(info.codec_names));
    write_attribute(root, "topology_names", std::span(info.topology_names));
    const H5Handle config(DP_CHECK_HDF5(H5Gopen2(root, "config", H5P_DEFAULT)), H5Gclose);
    write_config(config.get(), info);
  }

  void write_config(hid_t group, const RunInfo& info) {
    for (const auto& [name, value] : info.config) {
      write_attribute(group, name, name == "log" && value == "auto" ? path : value);
    }
  }

  void write_root(const RunInfo& info, double start) {
    const hid_t root = file.get();
    write_attribute(root, "format_version", kFormatVersion);
    write_attribute(root, "dptrain_version", info.dptrain_version);
    write_attribute(root, "git_revision", info.git_revision);
    write_attribute(root, "command_line", info.command_line);
    write_attribute(root, "started_at", iso8601(start));
    write_attribute(root, "world_size", checked_cast<std::int64_t>(info.world_size));
    write_attribute(root, "hosts", std::span(info.hosts));
    write_attribute(root, "devices", std::span(info.devices));
    write_attribute(root, "mpi_version", info.mpi_version);
    write_attribute(root, "finished", std::uint8_t{0});
    write_attribute(root, "resumed_from", info.resumed_from);
    write_attribute(root, "codec_names", std::span(info.codec_names));
    write_attribute(root, "topology_names", std::span(info.topology_names));
  }

  void write_groups(const RunInfo& info) {
    const auto make_group = [&](const char* name) {
      return H5Handle(
          DP_CHECK_HDF5(H5Gcreate2(file.get(), name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
          H5Gclose);
    };
    const H5Handle config = make_group("config");
    write_config(config.get(), info);
    const H5Handle model = make_group("model");
    write_attribute(model.get(), "name", info.model_name);
    write_attribute(model.get(), "parameters", checked_cast<std::int64_t>(info.parameters));
    write_attribute(model.get(), "gradient_bytes", checked_cast<std::int64_t>(info.gradient_bytes));
    write_attribute(model.get(), "buckets", checked_cast<std::int64_t>(info.buckets));
  }

  void flush() {
    make_room();
    DP_CHECK_HDF5(H5Fflush(file.get(), H5F_SCOPE_GLOBAL));
  }

  // Writes zeros behind the file's end, so that the disk has room for the next flush. A flush that
  // stops half-way would leave a file that nobody can read.
  void make_room() {
    // A flush may add index nodes to what is allocated, a few KiB per table.
    constexpr haddr_t kMargin = 32 << 10;
    haddr_t end = 0;
    DP_CHECK_HDF5(H5Fget_eoa(file.get(), &end));
    void* handle = nullptr;
    DP_CHECK_HDF5(H5Fget_vfd_handle(file.get(), H5P_DEFAULT, &handle));
    const int descriptor = *static_cast<const int*>(handle);
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) throw Error(ErrorKind::data, std::strerror(errno));
    constexpr std::array<char, 4096> kZeros = {};
    for (auto at = static_cast<haddr_t>(status.st_size); at < end + kMargin;) {
      const std::size_t count = std::min<haddr_t>(kZeros.size(), end + kMargin - at);
      const ssize_t written = ::pwrite(descriptor, kZeros.data(), count, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw Error(ErrorKind::data, std::strerror(errno));
      at += static_cast<haddr_t>(written);
    }
  }

  // For HDF5 the file stays open, but it gets no more calls.
  void abandon() noexcept {
    for (Table* table : {&epochs, &ranks, &buckets, &sessions, &steps}) table->abandon();
    file.abandon();
  }

  // Runs `work`; its exceptions then name the file.
  template <class Work>
  void guarded(const char* what, Work work) {
    DP_ASSERT(file.get() >= 0, "the log {} is closed already", path);
    try {
      work();
    } catch (const Error& error) {
      abandon();
      throw SettingError(Setting::log, path, fmt::format("{}: {}", what, error.what()),
                         error.kind());
    }
  }

  template <class Row>
  void append(Table& table, std::span<const Row> rows) {
    guarded("a row cannot be written", [&] {
      if (rows.empty()) return;
      table.append(rows.data(), rows.size());
      flush();
    });
  }

  template <class Value>
  void set_attribute(const std::string& group, const std::string& name, const Value& value) {
    guarded("an attribute cannot be written", [&] {
      const H5Handle object(DP_CHECK_HDF5(H5Gopen2(file.get(), group.c_str(), H5P_DEFAULT)),
                            H5Gclose);
      write_attribute(object.get(), name, value);
      flush();
    });
  }

  void close(bool is_finished) {
    guarded("cannot be closed", [&] {
      if (is_finished) write_attribute(file.get(), "finished", std::uint8_t{1});
      flush();
      for (Table* table : {&epochs, &ranks, &buckets, &sessions, &steps}) table->close();
      file.close();
    });
  }
};

RunLog RunLog::create(const std::string& path, const RunInfo& info) {
  prepare_hdf5();
  const std::string own_path = create_log_file(path);
  try {
    return RunLog(std::make_unique<State>(own_path, info, true));
  } catch (const Error& error) {
    ::unlink(own_path.c_str());
    throw SettingError(Setting::log, own_path, fmt::format("cannot be created: {}", error.what()),
                       error.kind());
  }
}

RunLog RunLog::resume(const std::string& path, std::span<const std::byte> image,
                      const RunInfo& info) {
  prepare_hdf5();
  try {
    write_whole_file(path, path + ".part", image);
    return RunLog(std::make_unique<State>(path, info, false));
  } catch (const Error& error) {
    throw SettingError(Setting::log, path, fmt::format("cannot go on: {}", error.what()),
                       error.kind());
  }
}

std::vector<std::byte> RunLog::image() const { return read_whole_file(path()); }

RunLog::RunLog(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunLog::RunLog(RunLog&&) noexcept = default;
RunLog& RunLog::operator=(RunLog&&) noexcept = default;
RunLog::~RunLog() = default;

const std::string& RunLog::path() const noexcept { return state_->path; }

void RunLog::append(std::span<const EpochRow> rows) { state_->append(state_->epochs, rows); }
void RunLog::append(std::span<const RankRow> rows) { state_->append(state_->ranks, rows); }
void RunLog::append(std::span<const BucketRow> rows) { state_->append(state_->buckets, rows); }
void RunLog::append(std::span<const SessionRow> rows) { state_->append(state_->sessions, rows); }
void RunLog::append(std::span<const StepRow> rows) {
  DP_ASSERT(state_->has_steps, "the log {} has no table of steps", state_->path);
  state_->append(state_->steps, rows);
}

void RunLog::set_attribute(const std::string& group, const std::string& name,
                           const std::string& value) {
  state_->set_attribute(group, name, value);
}
void RunLog::set_attribute(const std::string& group, const std::string& name,
                           std::span<const std::string> values) {
  state_->set_attribute(group, name, values);
}
void RunLog::set_attribute(const std::string& group, const std::string& name, double value) {
  state_->set_attribute(group, name, value);
}

void RunLog::set_attribute(const std::string& group, const std::string& name,
                           std::span<const double> values) {
  state_->set_attribute(group, name, values);
}

void RunLog::close(bool is_finished) { state_->close(is_finished); }

}  // namespace dp
