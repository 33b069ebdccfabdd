// Winograd's loops compiled for AVX-512 (kernels/CMakeLists.txt), whatever the rest of the program
// is compiled for.
#define DP_WINOGRAD_AVX512
#include "kernels/cpu/winograd_compiled.hpp"

namespace dp::cpu::winograd {

const Loops& loops_avx512() { return kLoops; }

}  // namespace dp::cpu::winograd
