// Signs of life that a run sends to dptrun, which started it.
//
// A mark is a few words between two control characters, "\x1e" "dptrun step 120 4a0c13f2" "\x1f",
// somewhere in standard output. mpirun brings the mark from the host of rank 0. The last word of a
// mark is a checksum: dptrun ignores a mark that was damaged on the way. dptrun removes the marks
// from the output. Marks are written only if the environment has DPTRAIN_STATUS.
//     alive       every second, from the start of the process, by rank 0
//     plan N      the whole run has N steps
//     images N N ...  the images of each rank in a step, whenever they change; omitted if the text
//                 is longer than kMostImagesText
//     start N     training begins after N steps: 0, or the checkpoint's step
//     step N      N steps are done; at most once a second, but at once for the first step and for
//                 a step after which a checkpoint is written
//     end CODE    this rank ends with that exit code; any rank may be the first to say so
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/base/crc32c.hpp"

namespace dp {

inline constexpr const char* kStatusVariable = "DPTRAIN_STATUS";
inline constexpr std::size_t kMostImagesText = 448;
inline constexpr char kStatusBegin = '\x1e', kStatusEnd = '\x1f';

// The last word of a mark: the CRC-32C of the words before it, such as "step 120".
[[nodiscard]] inline std::string mark_checksum(std::string_view words) {
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(words))));
}

class RunStatus {
 public:
  // Make one object in a process, in main, before MPI starts.
  RunStatus();
  ~RunStatus();
  RunStatus(const RunStatus&) = delete;
  RunStatus& operator=(const RunStatus&) = delete;

  // Marks of rank 0. The functions do nothing on other ranks, and nothing without DPTRAIN_STATUS.
  // Call say_step() from one thread only.
  static void say_plan(std::uint64_t steps);
  static void say_images(const std::string& of_ranks);
  static void say_start(std::uint64_t steps);
  static void say_step(std::uint64_t steps, bool at_once = false);
  // A mark of any rank.
  static void say_end(int exit_code);

 private:
  std::jthread thread_;
};

}  // namespace dp
