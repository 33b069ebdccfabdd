// --autotune FILE.h5: a run takes over the choices that an earlier run made by measurement, so that
// it can repeat that run bit for bit. The choices are algorithms, the size of buckets, the place
// where a GPU's gradients are encoded (GPU or host), and the bits per value that --compress auto
// used.
#pragma once

#include <cstddef>

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"
#include "io/log/run_choices.hpp"
#include "kernels/device.hpp"

namespace dp {

// Collective. Rank 0 reads the log, and all ranks get the choices. Each rank puts the algorithms
// for its device into that device's table. A resumed run has algorithms, buckets and path from its
// checkpoint, so it takes only shares, bits a value and rounds from the log. Throws AgreedError if
// the log cannot be read or lacks a needed choice. If the run is not resumed, it must also have the
// earlier run's model, precision, device of rank 0 and batch size per rank, because the choices
// depend on them.
void agree_on_earlier_choices(const Options& options, Communicator& comm, Device& device,
                              std::size_t batch_at_once, bool is_resumed, RunChoices& choices);

// Call it when everything is planned. Throws Error(usage) if this run needs a choice that the
// earlier run did not record, which can happen if another version of dptrain made that run. Without
// this check, this run would silently make that choice by a fixed rule, and its results would
// differ from the earlier run's. Do not call it without --autotune FILE.h5 or in a resumed run.
void check_choices_are_complete(const Options& options, const RunChoices& earlier, Device& device);

}  // namespace dp
