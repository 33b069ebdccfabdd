#include "tests/cuda_on_cpu/block.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/cuda_on_cpu/fiber.hpp"
#include "tests/cuda_on_cpu/prelude.hpp"
#include "tests/cuda_on_cpu/random_order.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace dp::cuda_on_cpu {

namespace {

constexpr unsigned kLanes = 32;

enum class State : unsigned char { begun, at_barrier, in_warp, ended };

struct Thread {
  State state = State::begun;
  Fiber* fiber = nullptr;
  const std::source_location* where = nullptr;
};

struct Warp {
  unsigned arrived = 0;
  unsigned turn = 0;  // which of the two sets of values is being filled
  WarpOperation operation = WarpOperation::sync;
  std::array<std::array<std::uint64_t, kLanes>, 2> values{};
};

class BlockRunner {
 public:
  void run(dim3 blocks, unsigned threads, std::uint64_t seed, const std::function<void()>& body) {
    body_ = &body;
    choices_ = Choices(seed);
    blockDim = dim3(threads);
    gridDim = blocks;
    threads_.resize(threads);
    warps_.assign((threads + kLanes - 1) / kLanes, Warp{});
    const std::uint64_t plane = static_cast<std::uint64_t>(blocks.x) * blocks.y;
    const RandomOrder order(plane * blocks.z, choices_);
    for (std::uint64_t i = 0; i < plane * blocks.z; ++i) {
      const std::uint64_t block = order(i);
      blockIdx.x = static_cast<unsigned>(block % blocks.x);
      blockIdx.y = static_cast<unsigned>(block % plane / blocks.x);
      blockIdx.z = static_cast<unsigned>(block / plane);
      run_block();
    }
  }

  void wait_for_block(const std::source_location& where) {
    const unsigned thread = current_;
    threads_[thread].where = &where;
    ++at_barrier_;
    suspend(thread, State::at_barrier);
  }

  const std::uint64_t* exchange(WarpOperation operation, unsigned mask, std::uint64_t value,
                                const std::source_location& where) {
    const unsigned thread = current_, lane = thread % kLanes;
    Warp& warp = warps_[thread / kLanes];
    if (mask != 0xFFFFFFFFu || blockDim.x % kLanes != 0) {
      die("%s:%u: an operation of a part of a warp (mask %x, %u threads a block)",
          where.file_name(), where.line(), mask, blockDim.x);
    }
    if (warp.arrived == 0) warp.operation = operation;
    if (warp.operation != operation) {
      die("%s:%u: the lanes of a warp are in different operations (block %u, thread %u)",
          where.file_name(), where.line(), blockIdx.x, thread);
    }
    const std::uint64_t* values = warp.values[warp.turn].data();
    warp.values[warp.turn][lane] = value;
    if (++warp.arrived < kLanes) {
      threads_[thread].where = &where;
      suspend(thread, State::in_warp);
      return values;
    }
    warp.arrived = 0;
    warp.turn ^= 1;
    const unsigned first = thread - lane;
    const RandomOrder order(kLanes, choices_);
    for (unsigned i = 0; i < kLanes; ++i) {
      const auto other = first + static_cast<unsigned>(order(i));
      if (other != thread) ready_.push_back(other);
    }
    return values;
  }

 private:
  // Runs the current block's threads to their ends.
  void run_block() {
    order_ = RandomOrder(threads_.size(), choices_);
    begun_ = ended_ = at_barrier_ = 0;
    ready_.clear();
    Fiber& first = free_fiber();
    Fiber::switch_to(main_, first);
  }

  static void fiber_entry();

  // Begins threads until there is none left, then goes where there is something to do.
  void run_fiber() {
    Fiber* self = entering_;
    for (;;) {
      while (begun_ < threads_.size()) {
        const auto thread = static_cast<unsigned>(order_(begun_++));
        threads_[thread] = {State::begun, self, nullptr};
        make_current(thread);
        (*body_)();
        threads_[current_].state = State::ended;
        ++ended_;
      }
      free_.push_back(self);
      Fiber::switch_to(*self, next());
    }
  }

  void suspend(unsigned thread, State state) {
    threads_[thread].state = state;
    Fiber* self = threads_[thread].fiber;
    Fiber& to = next();
    if (&to != self) Fiber::switch_to(*self, to);
    threads_[thread].state = State::begun;
    make_current(thread);
  }

  // The fiber to go on with: a free one for threads that have not begun, one of a thread that may
  // go on, or the main one when all have ended.
  Fiber& next() {
    if (begun_ < threads_.size()) return free_fiber();
    if (ready_.empty()) {
      if (ended_ == threads_.size()) return main_;
      leave_barrier();
    }
    const unsigned thread = ready_.back();
    ready_.pop_back();
    return *threads_[thread].fiber;
  }

  // No thread can go on unless all of the block wait at the same barrier.
  void leave_barrier() {
    const Thread* waiting = nullptr;
    for (const Thread& thread : threads_) {
      if (thread.state == State::in_warp) {
        die("%s:%u: a warp's operation that not all of its lanes reach (block %u, %u, %u)",
            thread.where->file_name(), thread.where->line(), blockIdx.x, blockIdx.y, blockIdx.z);
      }
      if (thread.state != State::at_barrier) continue;
      if (waiting != nullptr && waiting->where->line() != thread.where->line()) {
        die("%s:%u and %u: threads of a block wait at different barriers (block %u, %u, %u)",
            thread.where->file_name(), thread.where->line(), waiting->where->line(), blockIdx.x,
            blockIdx.y, blockIdx.z);
      }
      waiting = &thread;
    }
    if (at_barrier_ != threads_.size()) {
      die("%s:%u: %zu threads wait at a barrier, %zu have ended (block %u, %u, %u)",
          waiting->where->file_name(), waiting->where->line(), at_barrier_, ended_, blockIdx.x,
          blockIdx.y, blockIdx.z);
    }
    at_barrier_ = 0;
    const RandomOrder order(threads_.size(), choices_);
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      ready_.push_back(static_cast<unsigned>(order(i)));
    }
  }

  Fiber& free_fiber() {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(&fiber_entry, fibers_.size()));
      free_.push_back(fibers_.back().get());
    }
    entering_ = free_.back();
    free_.pop_back();
    return *entering_;
  }

  void make_current(unsigned thread) {
    current_ = thread;
    threadIdx.x = thread;
  }

  const std::function<void()>* body_ = nullptr;
  Choices choices_{0};
  RandomOrder order_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::size_t begun_ = 0, ended_ = 0, at_barrier_ = 0;
  std::vector<unsigned> ready_;
  unsigned current_ = 0;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  Fiber* entering_ = nullptr;
};

// Made by the first kernel, on the thread that runs all of them, and never ended: its fibers are
// suspended in the middle of a function.
BlockRunner& runner() {
  static BlockRunner& runner = *new BlockRunner;
  return runner;
}

void BlockRunner::fiber_entry() {
  Fiber::begin();
  runner().run_fiber();
}

}  // namespace

void run_blocks(dim3 blocks, unsigned threads, std::uint64_t seed,
                const std::function<void()>& body) {
  runner().run(blocks, threads, seed, body);
}

void wait_for_block(const std::source_location& where) { runner().wait_for_block(where); }

const std::uint64_t* exchange_in_warp(WarpOperation operation, unsigned mask, std::uint64_t value,
                                      const std::source_location& where) {
  return runner().exchange(operation, mask, value, where);
}

void die(const char* format, ...) {
  std::fputs("cuda_on_cpu: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace dp::cuda_on_cpu
