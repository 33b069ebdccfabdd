// Compiled for what the whole program is compiled for: AVX2 unless the build says otherwise, NEON
// on arm64.
#include "kernels/cpu/winograd_compiled.hpp"

namespace dp::cpu::winograd {

const Loops& loops() { return kLoops; }

}  // namespace dp::cpu::winograd
