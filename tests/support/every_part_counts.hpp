// Checks that a run needs everything that it lists as state in order to resume.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/support/state_list.hpp"

namespace dp::test {

// Trains [0, before), then, for each state block except those that `is_left_out` names, zeroes the
// block and expects that steps [before, before + after) then end differently. A run has train(from,
// count), list(), copy(), restore() and on_all(). Collective: all ranks do the same, so that they
// stay replicas of each other.
template <class Run, class Names>
void expect_every_part_counts(Run& run, std::uint64_t before, std::uint64_t after,
                              Names is_left_out) {
  run.train(0, before);
  const StateCopy begin = run.copy();
  run.train(before, after);
  const StateCopy end = run.copy();
  const StateList list = run.list();
  for (std::size_t i = 0; i < list.blocks.size(); ++i) {
    if (is_left_out(list.blocks[i].name)) continue;
    StateCopy less = begin;
    std::ranges::fill(less.blocks[i], std::byte{0});
    const bool is_zero = less.blocks[i] == begin.blocks[i];
    run.restore(less);
    run.train(before, after);
    const bool is_same = run.copy() == end;
    EXPECT_FALSE(run.on_all(is_zero)) << list.blocks[i].name << " is zero: nothing is shown";
    EXPECT_FALSE(run.on_all(is_same)) << list.blocks[i].name << " makes no difference";
  }
}

template <class Run>
void expect_every_part_counts(Run& run, std::uint64_t before, std::uint64_t after) {
  expect_every_part_counts(run, before, after, [](std::string_view) { return false; });
}

}  // namespace dp::test
