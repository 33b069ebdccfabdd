// How the global batch changes during a run (--batch-schedule).
//
//   fixed            the batch does not change
//   dynamic:max=N    the batch grows as the training loss falls, as in the paper that the recipes
//                    "lowband-..." follow. From the second epoch on, it is min(N, b eps) with
//                    eps = max(1, 2^(floor(E0 / Ee) - 1)). b is the run's batch, E0 the mean loss
//                    of the first epoch, and Ee the mean loss of the epoch before.
//   E:N,...          a list: from epoch E on, counted from 1, the batch has N images
//
// Batches count the images of all ranks in a step.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

struct BatchSchedule {
  enum class Kind { fixed, dynamic, list };

  Kind kind = Kind::fixed;
  std::size_t most = 0;  // dynamic
  // Epochs from 1, increasing, and batches.
  std::vector<std::pair<std::size_t, std::size_t>> list = {};
  std::string given = "fixed";  // the value as text

  // Global batch of an epoch, counted from 0, in a run whose batch is `base`. Only `dynamic` uses
  // the losses, and only from epoch 1 on.
  [[nodiscard]] std::size_t batch_of(std::size_t epoch, std::size_t base, double first_loss,
                                     double last_loss) const;
  // All batches that batch_of() may return, in increasing order.
  [[nodiscard]] std::vector<std::size_t> all(std::size_t base) const;
};

inline constexpr const char* kBatchSchedules =
    "fixed, dynamic:max=N or E:N,... (N images from epoch E on, with increasing epochs), with N "
    "from 1 to 16777216";

// Throws Error(usage).
[[nodiscard]] BatchSchedule parse_batch_schedule(std::string_view text);

}  // namespace dp
