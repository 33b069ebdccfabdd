// Reads a file in a child process first, to see whether the reading ends.
//
// HDF5's library trusts the contents of a file. For some damaged files, the library loops for ever
// or reads memory out of bounds. (HDF5 1.10.8 loops if an object of a global heap has length 0.) A
// run must not hang or crash because of a file. Files that may be damaged are therefore read twice:
// first in a child process and, if the child ended well, in this process.
#pragma once

#include <functional>
#include <string>

namespace dp {

// Runs `read`, which reads the file `path`, in a child process. The child's exceptions and results
// are lost. Throws Error(data) "HDF5: ..." if a signal kills the child, or if the child takes more
// than a second of processor time or ten seconds by the clock. (Both limits grow with the file's
// size.) If no process can be created, the function does nothing. In a build with AddressSanitizer,
// it also does nothing if the process has several threads.
void try_in_child(const std::string& path, const std::function<void()>& read);

}  // namespace dp
