// The link of --throttle in front of a network that takes no time, on a clock of the test's own.
#include "comm/mpi/throttled_transport.hpp"

#include <gtest/gtest.h>

#include "tests/comm/exchange/planned_network.hpp"

namespace dp::testing_support {
namespace {

constexpr std::size_t kMessage = 144'800;        // a hundred frames
constexpr double kMessage_s = 151'400.0 * 8e-8;  // at 100 Mbit/s, with what is around them
constexpr double kFirst_s = kMessage_s - LinkModel::kSlack_s;  // after a pause

class ThrottledTransportTest : public ::testing::Test {
 protected:
  // What ends on a channel at that time, when everything that can arrive has arrived.
  std::vector<std::size_t> slots_at(double s, Channel& channel) {
    now_s_ = kStart_s + s;
    std::vector<std::size_t> slots;
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (const Completion& ended : channel.poll()) {
        slots.push_back(ended.slot);
        has_moved = true;
      }
      while (network_.deliver()) has_moved = true;
    }
    return slots;
  }

  using Slots = std::vector<std::size_t>;
  static constexpr double kStart_s = 5.0;
  double now_s_ = kStart_s;
  PlannedNetwork network_{2, 0};
  ThrottledTransport sender_{network_.transport(0), 100e6, [this] { return now_s_; }};
  ThrottledTransport receiver_{network_.transport(1), 100e6, [this] { return now_s_; }};
  std::vector<std::byte> message_ = std::vector<std::byte>(kMessage, std::byte{7});
  std::vector<std::byte> first_ = std::vector<std::byte>(kMessage);
  std::vector<std::byte> second_ = std::vector<std::byte>(kMessage);
};

TEST_F(ThrottledTransportTest, MessagesAreHandedOverWhenTheLinkHasCarriedThem) {
  const auto from = sender_.open(2), also_from = sender_.open(1),
             to = network_.transport(1).open(2);
  to->receive(0, first_, 0, 1);
  to->receive(1, second_, 0, 2);
  from->send(0, message_, 1, 1);
  also_from->send(0, message_, 1, 2);  // the same link
  EXPECT_EQ(slots_at(0.99 * kFirst_s, *from), Slots{});
  EXPECT_EQ(slots_at(0.99 * kFirst_s, *to), Slots{});
  EXPECT_EQ(slots_at(1.01 * kFirst_s, *from), Slots{0});
  EXPECT_EQ(slots_at(1.01 * kFirst_s, *to), Slots{0});
  EXPECT_EQ(slots_at(kFirst_s + 0.99 * kMessage_s, *also_from), Slots{});
  EXPECT_EQ(slots_at(kFirst_s + 0.99 * kMessage_s, *to), Slots{});
  EXPECT_EQ(slots_at(kFirst_s + 1.01 * kMessage_s, *also_from), Slots{0});
  EXPECT_EQ(slots_at(kFirst_s + 1.01 * kMessage_s, *to), Slots{1});
  EXPECT_EQ(first_, message_);
  EXPECT_EQ(second_, message_);
}

TEST_F(ThrottledTransportTest, AReceiverTakesOneMessageAfterTheOther) {
  // The other network carries both at once; its link has carried the first meanwhile.
  const auto from = network_.transport(0).open(2), to = receiver_.open(2);
  to->receive(0, first_, 0, 1);
  to->receive(1, second_, 0, 2);
  from->send(0, message_, 1, 1);
  from->send(1, message_, 1, 2);
  EXPECT_EQ(slots_at(0.0, *to), Slots{0});
  EXPECT_EQ(slots_at(0.99 * kFirst_s, *to), Slots{});
  EXPECT_EQ(slots_at(1.01 * kFirst_s, *to), Slots{1});
}

TEST_F(ThrottledTransportTest, NoticesPassAtOnce) {
  const auto from = sender_.open(2), to = receiver_.open(2);
  to->receive(0, first_, 0, 1);
  to->receive_notice(1, second_, 2);
  from->send(0, message_, 1, 1);
  from->send_notice(1, std::span(message_).first(16), 1, 2);
  EXPECT_EQ(slots_at(0.0, *to), Slots{1});
  EXPECT_EQ(slots_at(0.0, *from), Slots{1});
  EXPECT_EQ(slots_at(1.01 * kFirst_s, *from), Slots{0});
  EXPECT_EQ(slots_at(1.01 * kFirst_s, *to), Slots{0});
}

}  // namespace
}  // namespace dp::testing_support
