// Reads a run log with HDF5's C interface, without dptrain's own reader.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace dp {

// Column names, separated by spaces, and all values as numbers.
struct ReadTable {
  std::string fields;
  std::vector<std::vector<double>> rows;

  // By a column's name.
  [[nodiscard]] double at(std::size_t row, const std::string& field) const {
    std::istringstream words(fields);
    std::size_t column = 0;
    for (std::string word; words >> word; ++column) {
      if (word == field) return rows.at(row).at(column);
    }
    ADD_FAILURE() << "no column " << field;
    return 0;
  }
};

// Also works while the run goes on.
inline hid_t open_run_log(const std::string& path) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  H5Pclose(access);
  return file;
}

inline ReadTable read_table(const std::string& path, const std::string& name) {
  const hid_t file = open_run_log(path);
  const hid_t data = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const hid_t type = H5Dget_type(data), space = H5Dget_space(data);
  EXPECT_GE(data, 0) << path << " " << name;
  hsize_t rows = 0;
  H5Sget_simple_extent_dims(space, &rows, nullptr);
  ReadTable table;
  const auto columns = static_cast<std::size_t>(std::max(H5Tget_nmembers(type), 1));
  const hid_t numbers = H5Tcreate(H5T_COMPOUND, columns * sizeof(double));
  for (std::size_t i = 0; i < columns; ++i) {
    char* member = H5Tget_member_name(type, static_cast<unsigned>(i));
    if (i > 0) table.fields += ' ';
    table.fields += member;
    H5Tinsert(numbers, member, i * sizeof(double), H5T_NATIVE_DOUBLE);
    H5free_memory(member);
  }
  std::vector<double> values(rows * columns);
  EXPECT_GE(H5Dread(data, numbers, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Tclose(numbers);
  for (auto row = values.begin(); row != values.end();
       row += static_cast<std::ptrdiff_t>(columns)) {
    table.rows.emplace_back(row, row + static_cast<std::ptrdiff_t>(columns));
  }
  H5Sclose(space);
  H5Tclose(type);
  H5Dclose(data);
  H5Fclose(file);
  return table;
}

// The numbers of an attribute of "/"; empty if there is none of that name.
inline std::vector<double> read_numbers(const std::string& path, const std::string& name) {
  const hid_t file = open_run_log(path);
  std::vector<double> values;
  if (H5Aexists(file, name.c_str()) > 0) {
    const hid_t attribute = H5Aopen(file, name.c_str(), H5P_DEFAULT);
    const hid_t space = H5Aget_space(attribute);
    values.resize(
        static_cast<std::size_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0)));
    EXPECT_GE(H5Aread(attribute, H5T_NATIVE_DOUBLE, values.data()), 0) << name;
    H5Sclose(space);
    H5Aclose(attribute);
  }
  H5Fclose(file);
  return values;
}

}  // namespace dp
