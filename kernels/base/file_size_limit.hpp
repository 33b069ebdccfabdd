// The limit on the size of files (ulimit -f).
#pragma once

#include <csignal>

namespace dp {

// Makes a write beyond the limit fail like one to a full disk, instead of ending the process
// without a message. Programs call it before they write anything, be it to a file that is their
// output.
inline void survive_file_size_limit() noexcept { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace dp
