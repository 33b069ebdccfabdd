// nvcc's built-in names, for the host compiler: put in front of every source of kernels/cuda
// (-include). Provides the part of CUDA C++ that they use: one-dimensional blocks, static shared
// memory, __syncthreads, whole-warp operations, atomics on integers.
#pragma once

#define DP_CUDA_ON_CPU 1

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "tests/cuda_on_cpu/block.hpp"
#include "tests/cuda_on_cpu/launch.hpp"

// Blocks run one at a time, so a block's memory is a static variable.
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

// For the running thread. Plain variables, because only the worker runs kernels.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier): CUDA's names.

#define DP_WHERE std::source_location where = std::source_location::current()

inline void __syncthreads(DP_WHERE) { dp::cuda_on_cpu::wait_for_block(where); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, DP_WHERE) {
  dp::cuda_on_cpu::exchange_in_warp(dp::cuda_on_cpu::WarpOperation::sync, mask, 0, where);
}
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- operations of a warp -----------------------------------------------------------------------

namespace dp::cuda_on_cpu {

template <class T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// The value of lane source(lane) in this lane's group of `width` lanes; the lane's own value if
// source is outside of it.
template <class T, class Source>
T shuffle(WarpOperation operation, unsigned mask, T value, int width, const Source& source,
          const std::source_location& where) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    die("%s:%u: a shuffle of width %d", where.file_name(), where.line(), width);
  }
  const std::uint64_t* values = exchange_in_warp(operation, mask, to_word(value), where);
  const int lane = static_cast<int>(threadIdx.x % 32), first = lane / width * width;
  const int from = source(lane, first);
  return from < first || from >= first + width ? value : from_word<T>(values[from]);
}

template <class Merge>
auto merge_in_warp(WarpOperation operation, unsigned mask, auto value, const Merge& merge,
                   const std::source_location& where) {
  const std::uint64_t* values = exchange_in_warp(operation, mask, to_word(value), where);
  auto result = from_word<decltype(value)>(values[0]);
  for (int lane = 1; lane < 32; ++lane) {
    result = merge(result, from_word<decltype(value)>(values[lane]));
  }
  return result;
}

}  // namespace dp::cuda_on_cpu

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, DP_WHERE) {
  return dp::cuda_on_cpu::shuffle(
      dp::cuda_on_cpu::WarpOperation::shuffle_xor, mask, value, width,
      [=](int lane, int) { return lane ^ lane_mask; }, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, DP_WHERE) {
  return dp::cuda_on_cpu::shuffle(
      dp::cuda_on_cpu::WarpOperation::shuffle_down, mask, value, width,
      [=](int lane, int) { return lane + static_cast<int>(delta); }, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, DP_WHERE) {
  return dp::cuda_on_cpu::shuffle(
      dp::cuda_on_cpu::WarpOperation::shuffle_up, mask, value, width,
      [=](int lane, int) { return lane - static_cast<int>(delta); }, where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, DP_WHERE) {
  return dp::cuda_on_cpu::shuffle(
      dp::cuda_on_cpu::WarpOperation::shuffle, mask, value, width,
      [=](int, int first) { return first + (source & (width - 1)); }, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, DP_WHERE) {
  const std::uint64_t* votes = dp::cuda_on_cpu::exchange_in_warp(
      dp::cuda_on_cpu::WarpOperation::vote, mask, predicate != 0, where);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) ballot |= static_cast<unsigned>(votes[lane]) << lane;
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate, DP_WHERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, DP_WHERE) {
  return __ballot_sync(mask, predicate, where) == 0xFFFFFFFFu;
}
#define DP_REDUCE(name, type, expression)                                     \
  inline type name(unsigned mask, type value, DP_WHERE) {                     \
    return dp::cuda_on_cpu::merge_in_warp(                                    \
        dp::cuda_on_cpu::WarpOperation::reduce, mask, value,                  \
        [](type a, type b) { return static_cast<type>(expression); }, where); \
  }
DP_REDUCE(__reduce_add_sync, unsigned, a + b)
DP_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
DP_REDUCE(__reduce_max_sync, int, a < b ? b : a)
DP_REDUCE(__reduce_min_sync, unsigned, b < a ? b : a)
DP_REDUCE(__reduce_min_sync, int, b < a ? b : a)
DP_REDUCE(__reduce_or_sync, unsigned, a | b)
DP_REDUCE(__reduce_and_sync, unsigned, a& b)
#undef DP_REDUCE
#undef DP_WHERE

// ---- atomics: real ones, since the host may look at pinned memory
// --------------------------------

namespace dp::cuda_on_cpu {
template <class T, class Merge>
T atomic_merge(T* at, const Merge& merge) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, merge(old), true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}
}  // namespace dp::cuda_on_cpu

template <class T>
concept DpAtomicInteger =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;

template <DpAtomicInteger T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <DpAtomicInteger T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <DpAtomicInteger T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_and(at, value, __ATOMIC_RELAXED);
}
template <DpAtomicInteger T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
template <DpAtomicInteger T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return dp::cuda_on_cpu::atomic_merge(at, [=](T old) { return old < value ? value : old; });
}
template <DpAtomicInteger T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return dp::cuda_on_cpu::atomic_merge(at, [=](T old) { return value < old ? value : old; });
}
template <DpAtomicInteger T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return dp::cuda_on_cpu::atomic_merge(at, [=](T old) { return old == expected ? value : old; });
}

// ---- memory and arithmetic
// ------------------------------------------------------------------------

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
template <class T>
void __stcg(T* at, T value) {
  *at = value;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { dp::cuda_on_cpu::die("__trap()"); }

template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

// NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)
