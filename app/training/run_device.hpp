// The device of a run: which one, that all ranks have the same kind, and a watch over a GPU's
// waits.
#pragma once

#include "app/options/options.hpp"
#include "kernels/tensor.hpp"

namespace dp {

struct Run;

[[nodiscard]] DataType activation_type(const Options& options);
// Makes this rank's. Throws Error(usage) or Error(device).
void choose_device(Run& run);
// Collective. A run trains on one kind of device, because kinds differ in the last bits of their
// arithmetic.
void agree_on_device(Run& run);

}  // namespace dp
