// Finds the checkpoint that --resume continues from. The ranks compare the files in their folders
// and agree on the newest checkpoint whose parts all exist and are undamaged.
//
// A truncated or damaged part counts as missing, and a line reports it. If no checkpoint has all
// its parts, the run continues without the lost parts from a checkpoint that once had them all. It
// takes the checkpoint with the fewest lost parts and, among several of these, the newest.
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
  bool all_have_owners = true;  // every part's head names its owner; the same on all ranks
  // The parts whose state this rank takes over. Rank r of P takes the parts of the earlier ranks r,
  // r + P, r + 2 P, ..., as far as they exist. If there are none, `replicated` has the replicated
  // entries of another rank's part.
  std::vector<Shard> own;
  std::optional<Shard> replicated;
  std::vector<std::uint32_t> lost;  // ranks whose parts no host has; the same on all ranks
  std::vector<std::byte> log;       // rank 0: the run log's file; empty if there is none

  [[nodiscard]] std::uint64_t epoch() const { return head.number("epoch"); }
  [[nodiscard]] bool epoch_is_over() const { return head.number("epoch_is_over") != 0; }
};

// Collective. Returns nothing if there is no checkpoint to continue from. Without --resume, all
// ranks throw the same AgreedError(data) if the folder holds checkpoints of another run. With
// --resume, they throw it if the folder holds checkpoints but none can be read.
[[nodiscard]] std::optional<ResumePoint> find_resume_point(const Options& options,
                                                           Communicator& comm);

// Collective: draws a number that identifies this start of the program, the same on all ranks.
[[nodiscard]] std::uint32_t draw_attempt(Communicator& comm);

}  // namespace dp
