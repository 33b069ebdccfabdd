// Reads a file in a child process first, to see whether the reading ends.
//
// HDF5's library trusts the contents of a file. On some damaged files it loops for ever or reads
// foreign memory (1.10.8: it loops if an object of a global heap has length 0). A run must not hang
// or crash because of a file, so code that reads foreign HDF5 files runs twice: first in a child
// process and, if the child ended well, in this process.
#pragma once

#include <functional>
#include <string>

namespace dp {

// Runs `read`, which reads the file `path`, in a child process. The child's exceptions and results
// are lost. Throws Error(data) "HDF5: ..." if a signal kills the child, or if it takes more than a
// second of processor time or ten seconds by the clock. (Both limits grow with the file's size.)
// Does nothing if no process can be created. A build with AddressSanitizer also does nothing once
// the process has threads.
void try_in_child(const std::string& path, const std::function<void()>& read);

}  // namespace dp
