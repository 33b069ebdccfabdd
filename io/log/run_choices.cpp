#include "io/log/run_choices.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <tuple>

#include "io/files/hdf5.hpp"
#include "io/files/trial.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The number in an attribute of /config; 0 if the option was not set.
std::size_t number_of(hid_t config, const std::string& name) {
  const std::string text = read_text_attribute(config, name);
  std::size_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Reads columns of a table into structs. Returns no rows if the table or a column is missing.
template <class Row>
std::vector<Row> read_columns(
    hid_t file, std::uint64_t file_bytes, const std::string& name,
    const std::vector<std::tuple<const char*, std::size_t, hid_t>>& columns) {
  if (H5Lexists(file, name.c_str(), H5P_DEFAULT) <= 0) return {};
  const H5Handle table(DP_CHECK_HDF5(H5Dopen2(file, name.c_str(), H5P_DEFAULT)), H5Dclose);
  const H5Handle type(DP_CHECK_HDF5(H5Dget_type(table.get())), H5Tclose);
  const H5Handle space(DP_CHECK_HDF5(H5Dget_space(table.get())), H5Sclose);
  const H5Handle row(DP_CHECK_HDF5(H5Tcreate(H5T_COMPOUND, sizeof(Row))), H5Tclose);
  for (const auto& [column, offset, column_type] : columns) {
    if (H5Tget_member_index(type.get(), column) < 0) return {};
    DP_CHECK_HDF5(H5Tinsert(row.get(), column, offset, column_type));
  }
  const auto count =
      static_cast<std::uint64_t>(DP_CHECK_HDF5(H5Sget_simple_extent_npoints(space.get())));
  // A damaged file may claim any length.
  if (count > file_bytes / H5Tget_size(type.get())) {
    throw_error(ErrorKind::data, "HDF5: the table /{} is damaged", name);
  }
  std::vector<Row> rows(count);
  if (count > 0) {
    DP_CHECK_HDF5(H5Dread(table.get(), row.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data()));
  }
  return rows;
}

// In the table, each change has one row for every rank, in the order of ranks. If a change has more
// or fewer than `ranks` rows, the run was resumed with another number of ranks. The function then
// returns no changes at all.
std::vector<RunChoices::ShareChange> read_shares(hid_t file, std::uint64_t file_bytes,
                                                 std::size_t ranks) {
  struct Row {
    std::int64_t step, rank, images;
  };
  const std::vector<Row> rows =
      read_columns<Row>(file, file_bytes, "shares",
                        {{"step", offsetof(Row, step), H5T_NATIVE_INT64},
                         {"rank", offsetof(Row, rank), H5T_NATIVE_INT64},
                         {"images", offsetof(Row, images), H5T_NATIVE_INT64}});
  std::vector<RunChoices::ShareChange> changes;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const std::size_t rank = row.rank == 0 || changes.empty() ? 0 : changes.back().weights.size();
    constexpr std::int64_t kMost = 16'777'216;
    if (row.step < 1 || row.rank != static_cast<std::int64_t>(rank) || row.images < 0 ||
        row.images > kMost || (row.rank > 0 && row.step != rows[i - 1].step)) {
      throw Error(ErrorKind::data, "HDF5: the table /shares is damaged");
    }
    if (row.rank == 0) changes.push_back({static_cast<std::uint64_t>(row.step - 1), {}});
    changes.back().weights.push_back(static_cast<std::uint64_t>(row.images));
  }
  const auto has_all = [&](const RunChoices::ShareChange& change) {
    return change.weights.size() == ranks;
  };
  if (!std::ranges::all_of(changes, has_all)) return {};
  return changes;
}

// Steps without planned bits, such as those of a warm-up, get the value 0. Returns an empty list if
// a step is missing from the table or if no step has planned bits.
std::vector<double> read_planned_bits(hid_t file, std::uint64_t file_bytes) {
  struct Row {
    std::int64_t step;
    double bits;
  };
  const std::vector<Row> rows =
      read_columns<Row>(file, file_bytes, "steps",
                        {{"step", offsetof(Row, step), H5T_NATIVE_INT64},
                         {"planned_bits", offsetof(Row, bits), H5T_NATIVE_DOUBLE}});
  std::vector<double> bits;
  for (const Row& each : rows) {
    if (each.step != static_cast<std::int64_t>(bits.size()) + 1) return {};
    bits.push_back(each.bits > 0.0 ? each.bits : 0.0);
  }
  if (std::ranges::all_of(bits, [](double each) { return each == 0.0; })) return {};
  return bits;
}

RunChoices read(const std::string& path) {
  const H5Handle file = open_hdf5(path);
  const H5Handle config(DP_CHECK_HDF5(H5Gopen2(file.get(), "config", H5P_DEFAULT)), H5Gclose);
  const H5Handle model(DP_CHECK_HDF5(H5Gopen2(file.get(), "model", H5P_DEFAULT)), H5Gclose);
  RunChoices choices;
  choices.model = read_text_attribute(model.get(), "name");
  choices.precision = read_text_attribute(config.get(), "precision");
  choices.device = read_text_attribute(file.get(), "devices");
  const std::size_t ranks = read_whole_attribute(file.get(), "world_size");
  choices.batch_per_rank = number_of(config.get(), "batch-size");
  if (choices.batch_per_rank == 0) {
    // Each rank's batch is divided into parts. Parts differ by at most one image, and rank 0 has
    // one of the larger parts. Logs of earlier versions do not record the number of parts.
    const bool has_parts = H5Aexists(config.get(), "accumulate") > 0;
    const std::size_t parts = has_parts ? number_of(config.get(), "accumulate") : 1;
    const std::size_t batch = number_of(config.get(), "global-batch");
    std::size_t at_once = 0;
    if (__builtin_mul_overflow(ranks, parts, &at_once) || at_once == 0) {
      throw Error(ErrorKind::data,
                  "HDF5: the number of ranks or of parts of the batch is 0 or too large");
    }
    choices.batch_per_rank = batch / at_once + (batch % at_once > 0 ? 1 : 0);
  }
  choices.algorithms = read_text_attribute(model.get(), "algorithms");
  choices.exchange_path = read_text_attribute(file.get(), "exchange_path");
  choices.bucket_bytes = read_whole_attribute(file.get(), "bucket_bytes");
  choices.planned_bits = read_planned_bits(file.get(), std::filesystem::file_size(path));
  if (H5Aexists(file.get(), "owner_weights") > 0) {
    choices.owner_weights = read_text_attribute(file.get(), "owner_weights");
  }
  if (ranks > 0) {
    choices.shares = read_shares(file.get(), std::filesystem::file_size(path), ranks);
  }
  if (H5Aexists(file.get(), "round_steps") > 0) {
    choices.round_steps = read_text_attribute(file.get(), "round_steps");
  }
  return choices;
}

}  // namespace

RunChoices read_run_choices(const std::string& path) {
  prepare_hdf5();
  try {
    try_in_child(path, [&] { static_cast<void>(read(path)); });
    return read(path);
  } catch (const Error& error) {
    const std::string reason = error.what();
    throw SettingError(
        Setting{"log of an earlier run"}, path,
        reason.starts_with("HDF5") ? "is not the log of a run, or it is damaged" : reason,
        ErrorKind::data);
  }
}

}  // namespace dp
