// Reads a text file that an option names: --config, --hostfile.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dp {

// How long a reader waits for a named pipe to be opened for writing, and for the next byte of any
// pipe.
struct PipePatience {
  double without_writer_s = 5.0, silent_s = 60.0;
};

// The file's content. Throws Error(usage) "--hostfile FILE: ..." if it is a folder, cannot be read
// or is longer than `most_bytes` (a device such as /dev/zero has no end). `kind` names the expected
// file in messages: "a hostfile". A pipe, such as bash's <(command), is read until its writer
// closes it.
[[nodiscard]] std::string read_text_file(std::string_view option, const std::string& path,
                                         std::size_t most_bytes, std::string_view kind,
                                         const PipePatience& patience = {});

// Whether the file is a pipe, which can be read only once.
[[nodiscard]] bool is_pipe(const std::string& path);

}  // namespace dp
