// try_in_child() (io/files/trial.hpp) for fuzzing: only what is HDF5's own fault counts as damage.
//
// HDF5's library crashes or hangs on some damaged files, and no mend of ours can help; so a child
// reads the file first. In the program every bad end of the child is damage. Here that would hide
// the faults of dptrain's own readers, which run in the child, too. Therefore the child looks at
// its stack when it crashes, hangs, takes much memory, or gets a report of AddressSanitizer:
//
//   a function of libhdf5 is on the stack, and the memory, if the report is about some, is
//   allocated by libhdf5 or by nobody
//                                 the fault is HDF5's: damage, as in the program
//   everything else               the caller reads the file in this process, too, where the fault
//                                 shows again: libFuzzer keeps the input, and the test fails
//
// A hang is 0.3 s of the processor. It is HDF5's if each of the last 20 looks, 10 ms apart, finds
// it on the stack; a loop of ours that calls HDF5 again and again is found between two calls. What
// is not told apart: a crash inside HDF5 because dptrain gave it a wrong argument, unless it is
// about memory that dptrain allocated.
#pragma once

namespace dp::fuzz {

// Finds where libhdf5 is; aborts where it is not found. Its file has the try_in_child() that a
// program gets which calls this function; that of io/files/trial.cpp is then left out by the
// linker.
void prepare_trials();

}  // namespace dp::fuzz
