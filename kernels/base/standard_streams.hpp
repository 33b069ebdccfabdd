// Descriptors 0 to 2: those of a process that was started without some of them (`program >&-`), and
// whether all output was written.
#pragma once

namespace dp {

// Opens those of the descriptors 0, 1 and 2 that are closed. Otherwise the next file, pipe or
// socket that the process opens gets such a number, and messages end up in it. A descriptor opened
// here fails as a closed one does: reading from 0 and writing to 1 and 2 gives EBADF. Programs call
// it before anything else, a library before it opens its first descriptor. Never throws.
void open_standard_streams() noexcept;

// Throws Error(data) if not all that was printed has reached standard output. A reader that has
// gone away (dptrain | head) is no error.
void check_output();

}  // namespace dp
