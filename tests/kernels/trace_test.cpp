#include "kernels/base/trace.hpp"

#include <gtest/gtest.h>

namespace dp {
namespace {

TEST(Trace, RecordsTheStepsOfItsWindowAlone) {
  TraceTrack track;
  track.reserve(100);
  track.set_window(5, 2);
  for (std::uint64_t step = 0; step < 10; ++step) {
    track.begin_step(step);
    EXPECT_EQ(track.is_on(), step == 5 || step == 6) << step;
    EXPECT_EQ(track.begins_with(step), step == 5) << step;
    const TraceSlice slice(&track, TraceKind::layer_forward, 7);
  }
  track.add({.step = 4});
  track.add({.step = 7});
  track.add({.step = 6, .kind = TraceKind::step});  // of a step that is over
  ASSERT_EQ(track.events().size(), 3u);
  for (std::size_t i = 0; i < 2; ++i) {
    const TraceEvent& event = track.events()[i];
    EXPECT_EQ(event.step, 5 + i);
    EXPECT_EQ(event.id, 7u);
    EXPECT_EQ(event.kind, TraceKind::layer_forward);
    EXPECT_LE(event.begin_ns, event.end_ns);
  }
  EXPECT_LE(track.events()[0].end_ns, track.events()[1].begin_ns);
  EXPECT_EQ(track.left_out(), 0u);
}

TEST(Trace, LeavesOutAndCountsWhatDoesNotFit) {
  TraceTrack track;
  track.reserve(3);
  const TraceEvent* memory = track.events().data();
  track.set_window(0, 1);
  for (std::uint32_t id = 0; id < 10; ++id) track.add({.id = id});
  ASSERT_EQ(track.events().size(), 3u);
  EXPECT_EQ(track.events()[2].id, 2u);
  EXPECT_EQ(track.events().data(), memory);
  EXPECT_EQ(track.left_out(), 7u);
}

TEST(Trace, WithoutMemoryOrWindowTakesNothing) {
  TraceTrack track;
  track.begin_step(0);
  EXPECT_FALSE(track.is_on() || track.begins_with(0));
  track.set_window(0, 1);
  track.add({});
  EXPECT_EQ(track.left_out(), 1u);
  const TraceSlice slice(nullptr, TraceKind::loss);
}

}  // namespace
}  // namespace dp
