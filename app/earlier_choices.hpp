// --autotune FILE.h5: a run that chooses what an earlier run chose by measurement, so that it can
// repeat that run bit for bit: algorithms, the size of buckets, the path of a GPU's gradients.
#pragma once

#include <cstddef>

#include "app/options.hpp"
#include "comm/communicator.hpp"
#include "io/run_choices.hpp"
#include "kernels/device.hpp"

namespace dp {

// Collective. Rank 0 reads the log; all ranks get the choices, the algorithms among them into their
// device's table. Throws AgreedError where the log cannot be read, or where that run was of another
// model, precision, device of rank 0 or batch size per rank: its choices were made for those.
[[nodiscard]] RunChoices agree_on_earlier_choices(const Options& options, Communicator& comm,
                                                  Device& device, std::size_t global_batch);

// After all has been planned. Throws Error(usage) where a choice was needed that the earlier run
// has not made (it was of another version of dptrain): the fixed rule instead would give other bits
// without a word. Does nothing without --autotune FILE.h5.
void check_choices_are_complete(const Options& options, const RunChoices& earlier, Device& device);

}  // namespace dp
