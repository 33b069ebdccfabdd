// Where a run goes on (--resume): the ranks compare what they find in their folders and agree on
// the newest checkpoint of which all parts are there and undamaged.
//
// A part that is cut off or damaged counts as not there, and a line says so. If no checkpoint has
// all its parts, the newest one that once had them is taken without those that are lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"
#include "io/files/checkpoint_file.hpp"
#include "io/files/checkpoint_folder.hpp"

namespace dp {

struct ResumePoint {
  CheckpointId checkpoint;
  CheckpointHead head;          // the same on all ranks
  bool all_have_owners = true;  // the parts say whose they are; the same on all ranks
  // The parts whose state this rank takes over: of the ranks r, r + P, r + 2 P, ... for this rank r
  // of P, as far as they are there. With none, `replicated` is another rank's part.
  std::vector<Shard> own;
  std::optional<Shard> replicated;
  std::vector<std::uint32_t> lost;  // ranks whose parts are nowhere; the same on all ranks
  std::vector<std::byte> log;       // rank 0: the run log's file; empty where there is none

  [[nodiscard]] std::uint64_t epoch() const { return head.number("epoch"); }
  [[nodiscard]] bool epoch_is_over() const { return head.number("epoch_is_over") != 0; }
};

// Collective. Nothing where there is no checkpoint to go on from. Without
// --resume it throws Error(data) where the folder holds checkpoints of another run.
[[nodiscard]] std::optional<ResumePoint> find_resume_point(const Options& options,
                                                           Communicator& comm);

// Collective: a number for this start of the program, the same on all ranks.
[[nodiscard]] std::uint32_t draw_attempt(Communicator& comm);

}  // namespace dp
