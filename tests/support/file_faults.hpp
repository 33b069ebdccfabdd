// Counts the calls with which a program changes files, and makes one of them fail: the process is
// killed there, or the disk is full.
//
// The library dp_file_faults works in two ways. A program starts with it preloaded:
//
//     LD_PRELOAD=.../libdp_file_faults.so DP_FAULTS_BELOW=/tmp/x/ DP_FAULTS_AT=7
//     DP_FAULTS_KIND=full PROGRAM
//
// Or a test program links to it and calls set_file_faults() in a process that it forks. The
// variables are
//
//     DP_FAULTS_BELOW  paths that begin with this text count, and a folder itself that ends it
//                      with "/"
//     DP_FAULTS_AT     the number of the call that goes wrong, from 1 on; 0 or unset: none
//     DP_FAULTS_KIND   what happens there, see FileFault
//     DP_FAULTS_LIST   a file elsewhere that gets a line before each counted call is made, such as
//                      "7 rename /tmp/x/log.h5". Its length is the number of calls, after a kill,
//                      too. Without it the number is printed on stderr at the end.
//     DP_FAULTS_RANK   under mpirun, only the process of this rank counts
//
// The counted calls are create (a file opened with O_CREAT), write, pwrite, writev, pwritev,
// truncate, ftruncate, fallocate, fsync, fdatasync, rename, link, unlink, mkdir, rmdir, in all
// their forms, and close of a file that was written to.
#pragma once

#include <string_view>
#include <utility>

namespace dp {

enum class FileFault {
  none,
  kill_before,  // SIGKILL instead of the call
  kill_after,   // SIGKILL after the call
  kill_within,  // half of the bytes of a write, then SIGKILL; other calls: as kill_before
  full,         // ENOSPC, also for all later calls that need room
  short_write,  // half of the bytes of a write, then as full; other calls: as full
  once          // ENOSPC for this call only
};

inline constexpr std::pair<std::string_view, FileFault> kFileFaults[] = {
    {"kill-before", FileFault::kill_before}, {"kill-after", FileFault::kill_after},
    {"kill-within", FileFault::kill_within}, {"full", FileFault::full},
    {"short", FileFault::short_write},       {"once", FileFault::once}};

// Restarts the count at 0 with a new plan; the arguments correspond to the variables. An empty
// `below` counts nothing. Call it while no other thread changes files.
void set_file_faults(const char* below, long at, FileFault fault, const char* list = "");

[[nodiscard]] long counted_file_calls();

}  // namespace dp
