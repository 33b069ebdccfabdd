// Reads a file in a process of its own first, to see whether that ends.
//
// HDF5's library trusts what a file says of itself: on some damaged files it runs for ever, or
// reads memory that is not its own (1.10.8: for ever where an object of a global heap has no
// length). A run must not hang or crash because of a file. So what reads HDF5 files that others
// have made runs twice: in a child process, and here if that one has ended well.
#pragma once

#include <functional>
#include <string>

namespace dp {

// Runs `read`, which reads the file `path`, in a child, whose exceptions and results are lost.
// Throws Error(data) "HDF5: ..." if the child is killed by a signal, or takes a second of the
// processor or ten by the clock, and more for a large file. Where no process can be made it does
// nothing, nor in a build with AddressSanitizer once the process has threads.
void try_in_child(const std::string& path, const std::function<void()>& read);

}  // namespace dp
