#include "io/log/run_log_image.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr hsize_t kLeastChunkRows = 1'024;
// In a long table, every chunk has room for at least a quarter of the table's rows. The file is
// therefore laid out anew only each time that a table has grown by about a quarter.
constexpr hsize_t kMostChunks = 4;
constexpr std::size_t kMemoryStep = 1u << 20;  // HDF5 grows the image in steps of this size

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

// The HDF5 type of a LogTable's rows. If a file's row type is given as `of`, the result has only
// the columns that the file has.
H5Handle row_type(const LogTable& table, hid_t of = H5I_INVALID_HID) {
  H5Handle type(DP_CHECK_HDF5(H5Tcreate(H5T_COMPOUND, table.row_bytes())), H5Tclose);
  std::size_t offset = 0;
  for (const LogField& field : table.fields) {
    if (of < 0 || H5Tget_member_index(of, field.name.c_str()) >= 0) {
      DP_CHECK_HDF5(H5Tinsert(type.get(), field.name.c_str(), offset, native_type(field.type)));
    }
    offset += 8;
  }
  H5Eclear2(H5E_DEFAULT);
  return type;
}

H5Handle in_memory(std::size_t step) {
  H5Handle access(DP_CHECK_HDF5(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  DP_CHECK_HDF5(H5Pset_fapl_core(access.get(), step, false));
  return access;
}

H5Handle open_group(hid_t file, const std::string& name) {
  return {DP_CHECK_HDF5(H5Gopen2(file, ("/" + name).c_str(), H5P_DEFAULT)), H5Gclose};
}

}  // namespace

void LogGroup::set(const std::string& attribute, LogValue value) {
  const auto it =
      std::ranges::find(attributes, attribute, &std::pair<std::string, LogValue>::first);
  if (it != attributes.end()) {
    it->second = std::move(value);
  } else {
    attributes.emplace_back(attribute, std::move(value));
  }
}

const LogValue* LogGroup::find(const std::string& attribute) const {
  const auto it =
      std::ranges::find(attributes, attribute, &std::pair<std::string, LogValue>::first);
  return it == attributes.end() ? nullptr : &it->second;
}

std::vector<LogTable> empty_log_tables() {
  return {{.name = "epochs", .fields = log_fields<EpochRow>()},
          {.name = "ranks", .fields = log_fields<RankRow>()},
          {.name = "buckets", .fields = log_fields<BucketRow>()},
          {.name = "sessions", .fields = log_fields<SessionRow>()},
          {.name = "tensors", .fields = log_fields<TensorRow>()},
          {.name = "shares", .fields = log_fields<ShareRow>()},
          {.name = "steps", .fields = log_fields<StepRow>()}};
}

void LogTable::append(const void* row) {
  const std::size_t before = rows.size();
  rows.resize(before + row_bytes());
  std::byte* to = rows.data() + before;
  for (const LogField& field : fields) {
    std::memcpy(to, static_cast<const std::byte*>(row) + field.offset, 8);
    to += 8;
  }
}

std::int64_t LogTable::whole_number(std::size_t row, const std::string& column) const {
  const auto it = std::ranges::find(fields, column, &LogField::name);
  DP_ASSERT(it != fields.end() && it->type == LogType::int64,
            "the table {} has no column of whole numbers {}", name, column);
  std::int64_t number = 0;
  std::memcpy(&number,
              rows.data() + row * row_bytes() + 8 * static_cast<std::size_t>(it - fields.begin()),
              8);
  return number;
}

LogGroup& LogContents::group(const std::string& name) {
  const auto it = std::ranges::find(groups, name, &LogGroup::name);
  DP_ASSERT(it != groups.end(), "a run log has no group '{}'", name);
  return *it;
}

const LogGroup& LogContents::group(const std::string& name) const {
  return const_cast<LogContents*>(this)->group(name);
}

// ---- writing ------------------------------------------------------------------------------------

LogImage::LogImage(const LogContents& contents) {
  const H5Handle access = in_memory(kMemoryStep);
  // HDF5 requires a name, but no file with this name is created.
  file_ = {DP_CHECK_HDF5(H5Fcreate("run log", H5F_ACC_TRUNC, H5P_DEFAULT, access.get())), H5Fclose};
  for (const LogGroup& group : contents.groups) {
    if (!group.name.empty()) {
      H5Handle made(DP_CHECK_HDF5(H5Gcreate2(file_.get(), group.name.c_str(), H5P_DEFAULT,
                                             H5P_DEFAULT, H5P_DEFAULT)),
                    H5Gclose);
    }
    const H5Handle object = open_group(file_.get(), group.name);
    for (const auto& [name, value] : group.attributes) {
      write_any_attribute(object.get(), name, value);
    }
  }
  for (const LogTable& table : contents.tables) write_table(table);
  DP_CHECK_HDF5(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL));
  const ssize_t size = H5Fget_file_image(file_.get(), nullptr, 0);
  if (size < 0) throw_error(ErrorKind::data, "HDF5 cannot return the log as bytes");
  // For a file in memory, the handle is the address of the pointer to its bytes.
  void* handle = nullptr;
  DP_CHECK_HDF5(H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle));
  bytes_ = {*static_cast<const std::byte* const*>(handle), static_cast<std::size_t>(size)};
  find_places(contents);
}

void LogImage::write_table(const LogTable& table) {
  const H5Handle type = row_type(table);
  const hsize_t count = table.count(), unlimited = H5S_UNLIMITED;
  const H5Handle space(DP_CHECK_HDF5(H5Screate_simple(1, &count, &unlimited)), H5Sclose);
  const H5Handle layout(DP_CHECK_HDF5(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  hsize_t chunk_rows = kLeastChunkRows;
  while (chunk_rows * kMostChunks < count) chunk_rows *= 2;
  DP_CHECK_HDF5(H5Pset_chunk(layout.get(), 1, &chunk_rows));
  DP_CHECK_HDF5(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY));
  tables_.push_back({DP_CHECK_HDF5(H5Dcreate2(file_.get(), table.name.c_str(), type.get(),
                                              space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT)),
                     H5Dclose});
  std::vector<std::string> units;
  for (const LogField& field : table.fields) units.push_back(field.unit);
  const hid_t data = tables_.back().get();
  write_attribute(data, "units", std::span<const std::string>(units));
  if (count > 0) {
    DP_CHECK_HDF5(H5Dwrite(data, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, table.rows.data()));
  }
  places_.push_back({.first = count > 0 ? (count - 1) / chunk_rows * chunk_rows : 0,
                     .end = count > 0 ? ((count - 1) / chunk_rows + 1) * chunk_rows : 0});
}

// Returns the offset in the file at which the table's length is stored, or 0 if the length is not
// where it should be. The length is in the table's object header, which consists of blocks of
// messages. A continuation message gives the place of the next block; the dataspace message has the
// length.
std::size_t find_length(std::span<const std::byte> file, std::size_t header, std::uint64_t count) {
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    if (at + bytes <= file.size()) std::memcpy(&value, file.data() + at, bytes);
    return value;
  };
  constexpr std::size_t kPrefix = 16, kMessageHead = 8;
  constexpr std::uint64_t kDataspace = 1, kContinuation = 16;
  if (number(header, 1) != 1) return 0;  // another version of the header
  std::vector<std::pair<std::size_t, std::size_t>> blocks = {
      {header + kPrefix, number(header + 8, 4)}};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const auto [begin, bytes] = blocks[b];
    if (begin > file.size() || bytes > file.size() - begin) return 0;
    for (std::size_t at = begin; at + kMessageHead <= begin + bytes;) {
      const std::size_t data = at + kMessageHead;
      if (number(at, 2) == kContinuation) blocks.emplace_back(number(data, 8), number(data + 8, 8));
      if (number(at, 2) == kDataspace) {
        const bool is_known = number(data, 1) == 1 && number(data + 1, 1) == 1;
        return is_known && number(data + 8, 8) == count ? data + 8 : 0;
      }
      at = data + number(at + 2, 2);
    }
  }
  return 0;
}

void LogImage::find_places(const LogContents& contents) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    Place& place = places_[t];
    if (place.end == 0) continue;
    const hsize_t first = place.first;
    unsigned filters = 0;
    haddr_t rows_at = 0;
    hsize_t bytes = 0;
    DP_CHECK_HDF5(H5Dget_chunk_info_by_coord(tables_[t].get(), &first, &filters, &rows_at, &bytes));
    place.rows_at = rows_at;
    place.length_at =
        find_length(bytes_, header_address(tables_[t].get()), contents.tables[t].count());
    const std::size_t needed = (place.end - place.first) * contents.tables[t].row_bytes();
    if (place.length_at == 0 || rows_at + needed > bytes_.size()) place = {};
  }
}

// ---- reading ------------------------------------------------------------------------------------

namespace {

LogGroup read_group(hid_t file, const std::string& name) {
  LogGroup group{.name = name, .attributes = {}};
  const H5Handle object = open_group(file, name);
  for (const std::string& attribute : attribute_names(object.get())) {
    group.set(attribute, read_attribute(object.get(), attribute));
  }
  return group;
}

void read_table(hid_t file, std::size_t file_bytes, LogTable& table) {
  const H5Handle data(DP_CHECK_HDF5(H5Dopen2(file, table.name.c_str(), H5P_DEFAULT)), H5Dclose);
  const H5Handle type(DP_CHECK_HDF5(H5Dget_type(data.get())), H5Tclose);
  const H5Handle space(DP_CHECK_HDF5(H5Dget_space(data.get())), H5Sclose);
  const auto count =
      static_cast<std::uint64_t>(DP_CHECK_HDF5(H5Sget_simple_extent_npoints(space.get())));
  // A damaged file may claim any length.
  if (H5Tget_class(type.get()) != H5T_COMPOUND || count > file_bytes / H5Tget_size(type.get())) {
    throw_error(ErrorKind::data, "HDF5: the table /{} is damaged", table.name);
  }
  const H5Handle wanted = row_type(table, type.get());
  table.rows.assign(count * table.row_bytes(), std::byte{0});
  if (count == 0) return;
  DP_CHECK_HDF5(
      H5Dread(data.get(), wanted.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, table.rows.data()));
}

}  // namespace

LogContents read_log_image(std::span<const std::byte> bytes, std::vector<LogTable> tables) {
  const H5Handle access = in_memory(kMemoryStep);
  // HDF5 copies the bytes.
  DP_CHECK_HDF5(
      H5Pset_file_image(access.get(), const_cast<std::byte*>(bytes.data()), bytes.size()));
  const H5Handle file(DP_CHECK_HDF5(H5Fopen("run log", H5F_ACC_RDONLY, access.get())), H5Fclose);
  LogContents contents;
  for (const char* name : {"", "config", "model"}) {
    contents.groups.push_back(read_group(file.get(), name));
  }
  for (LogTable& table : tables) {
    if (DP_CHECK_HDF5(H5Lexists(file.get(), table.name.c_str(), H5P_DEFAULT)) == 0) continue;
    read_table(file.get(), bytes.size(), table);
    contents.tables.push_back(std::move(table));
  }
  return contents;
}

}  // namespace dp
