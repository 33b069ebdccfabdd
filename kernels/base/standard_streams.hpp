// Opens the descriptors 0 to 2 if the process was started without them (`program >&-`), and checks
// that all output was written.
#pragma once

namespace dp {

// Opens each of the descriptors 0, 1 and 2 that is closed. If a descriptor stayed closed, the next
// file, pipe or socket of the process would get the descriptor's number. Messages would then end up
// in that file. A descriptor opened here fails like a closed one: reading from 0 and writing to 1
// and 2 gives EBADF. A program calls this before anything else, and a library before it opens its
// first descriptor. Never throws.
void open_standard_streams() noexcept;

// Throws Error(data) if part of the printed text has not reached standard output. A reader that has
// gone away (dptrain | head) is not an error.
void check_output();

}  // namespace dp
