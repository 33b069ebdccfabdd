// --autotune FILE.h5: a run takes the choices that an earlier run made by measurement, so that it
// can repeat that run bit for bit. These are algorithms, the size of buckets, the path of a GPU's
// gradients, and the rates of --compress auto.
#pragma once

#include <cstddef>

#include "app/options.hpp"
#include "comm/communicator.hpp"
#include "io/run_choices.hpp"
#include "kernels/device.hpp"

namespace dp {

// Collective. Rank 0 reads the log, and all ranks get the choices; the algorithms go into their
// device's table. Throws AgreedError if the log cannot be read, or if that run had another model,
// precision, device of rank 0 or batch size per rank, since its choices were made for those.
[[nodiscard]] RunChoices agree_on_earlier_choices(const Options& options, Communicator& comm,
                                                  Device& device, std::size_t global_batch);

// Call it when everything is planned. Throws Error(usage) if a choice was needed that the earlier
// run has not made, because it used another version of dptrain; the fixed rule would silently give
// other bits. Does nothing without --autotune FILE.h5.
void check_choices_are_complete(const Options& options, const RunChoices& earlier, Device& device);

}  // namespace dp
