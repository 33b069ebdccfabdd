// Winograd's loops compiled for the whole program's instruction set: AVX2 unless the build sets
// another, NEON on arm64.
#include "kernels/cpu/winograd_compiled.hpp"

namespace dp::cpu::winograd {

const Loops& loops() { return kLoops; }

}  // namespace dp::cpu::winograd
