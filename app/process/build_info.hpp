// Identifies this program, for the log and for the comparison of ranks before the first step.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// "9880b64c1f2a", with "-dirty" after uncommitted changes; "unknown" without git.
[[nodiscard]] std::string git_revision();

// Version and revision of dptrain: "0.1.0 (1a2b3c4d5e6f)".
[[nodiscard]] std::string build_name();

// "Open MPI v4.1.4"
[[nodiscard]] std::string mpi_version();

// 16 hexadecimal digits that differ between programs built from different sources or by different
// compilers. They come from the linker's build id or, without one, from the program's bytes.
[[nodiscard]] std::string build_id();

// The processors that this program was built for: "x86-64", "arm64" or "another architecture".
[[nodiscard]] std::string_view architecture();

}  // namespace dp
