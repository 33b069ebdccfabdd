// Reads the log of earlier sessions of a run that is resumed.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "io/log/run_log.hpp"
#include "io/log/run_log_image.hpp"

namespace dp {

// The log in a file; nullopt if it cannot be read or is not a run log of this format.
[[nodiscard]] std::optional<LogContents> read_run_log(std::span<const std::byte> file);
[[nodiscard]] std::optional<LogContents> read_run_log(const std::string& path);

// Whether both are logs of the same run.
[[nodiscard]] bool is_same_run(const LogContents& one, const LogContents& other);

// Drops the rows of epochs from info.first_epoch on, and of steps after info.first_step.
void put_back(LogContents& contents, const RunInfo& info);

}  // namespace dp
