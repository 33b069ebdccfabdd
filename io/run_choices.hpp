// What a run chose by measurement, read from its log (run_log.hpp), finished or not, so that
// another run can choose the same; and what the run was, to tell whether that makes sense.
#pragma once

#include <cstddef>
#include <string>

namespace dp {

struct RunChoices {
  std::string model, precision;
  std::string device;  // of rank 0, as Device::description() puts it
  std::size_t batch_per_rank = 0;
  std::string algorithms;     // Tuning::export_text()
  std::string exchange_path;  // of a GPU: "device" or "host"; else empty
  std::size_t bucket_bytes = 0;
};

// Throws Error(data) "OPTION PATH: ..." where the file cannot be read or is no log of a run.
[[nodiscard]] RunChoices read_run_choices(const std::string& option, const std::string& path);

}  // namespace dp
