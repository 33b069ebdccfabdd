// The limit on the size of files (ulimit -f).
#pragma once

#include <csignal>

namespace dp {

// Makes a write beyond the limit fail as on a full disk, instead of ending the process without a
// message. Programs call it before they write anything, including to standard output, which may be
// a file.
inline void survive_file_size_limit() noexcept { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace dp
