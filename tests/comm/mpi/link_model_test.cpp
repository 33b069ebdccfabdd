// The slow link of --throttle, on a clock of the test's own.
#include "comm/mpi/link_model.hpp"

#include <gtest/gtest.h>

namespace dp {
namespace {

constexpr std::size_t kMessage = 144'800;        // a hundred frames
constexpr double kMessage_s = 151'400.0 * 8e-8;  // at 100 Mbit/s, with what is around them

TEST(LinkModel, CarriesOneMessageAfterTheOther) {
  LinkModel link(100e6);
  const double first = link.transmit(kMessage, 5.0);
  EXPECT_NEAR(first, 5.0 - LinkModel::kSlack_s + kMessage_s, 1e-9);
  // Given while the first is on its way; the sender wakes up late, which costs nothing.
  EXPECT_NEAR(link.transmit(kMessage, 5.001), first + kMessage_s, 1e-9);
  EXPECT_NEAR(link.transmit(kMessage, first + kMessage_s + 2.9e-3), first + 2 * kMessage_s, 1e-9);
  // After a pause only the slack's tokens are there.
  EXPECT_NEAR(link.transmit(kMessage, 9.0), 9.0 - LinkModel::kSlack_s + kMessage_s, 1e-9);
}

TEST(LinkModel, BothDirectionsAtOnce) {
  LinkModel link(100e6);
  EXPECT_LT(link.transmit(kMessage, 1.0), 1.0 + kMessage_s);
  // It has travelled until now; nothing is added.
  EXPECT_EQ(link.receive(kMessage, 1.0 + kMessage_s), 1.0 + kMessage_s);
}

TEST(LinkModel, SeveralSendersShareTheReceiversLink) {
  LinkModel link(100e6);
  // Three messages that three links have carried until now: the first is there, the others come in
  // turn.
  EXPECT_EQ(link.receive(kMessage, 3.0), 3.0);
  EXPECT_NEAR(link.receive(kMessage, 3.0), 3.0 - LinkModel::kSlack_s + kMessage_s, 1e-9);
  EXPECT_NEAR(link.receive(kMessage, 3.0), 3.0 - LinkModel::kSlack_s + 2 * kMessage_s, 1e-9);
  // From one sender, one after the other, some a little late: nothing adds up.
  LinkModel other(100e6);
  for (int i = 1; i <= 100; ++i) {
    const double now = i * kMessage_s + (i % 7 == 0 ? 2.8e-3 : 0.0);
    EXPECT_NEAR(other.receive(kMessage, now), now, 1e-9) << i;
  }
}

}  // namespace
}  // namespace dp
