// The contract of comm/mpi/transport.hpp, by MPI and by MPI behind a slow link.
#include "comm/mpi/mpi_transport.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "comm/mpi/throttled_transport.hpp"

namespace dp {
namespace {

constexpr int kTag = 100, kOtherTag = 101, kNoticeTag = 102;  // nobody else's (tags.hpp)

std::span<std::byte> bytes_of(int& value) { return std::as_writable_bytes(std::span(&value, 1)); }

// Polls until so many transfers have ended.
std::vector<Completion> wait_for(Channel& channel, std::size_t count) {
  std::vector<Completion> all;
  while (all.size() < count) {
    for (const Completion& ended : channel.poll()) all.push_back(ended);
  }
  return all;
}

void check_promises(Communicator& comm, Transport& transport) {
  ASSERT_EQ(transport.rank(), comm.rank());
  ASSERT_EQ(transport.size(), comm.size());
  const int p = comm.size(), right = (comm.rank() + 1) % p, left = (comm.rank() + p - 1) % p;
  const auto channel = transport.open(8);
  EXPECT_TRUE(channel->poll().empty());
  // Twice, as slots are free again. Sent in an order of tags that the receiver does not ask in, and
  // before it asks for one of them.
  for (int round = 0; round < 2; ++round) {
    std::array<int, 3> out = {10 + comm.rank(), 20 + comm.rank(), 30 + comm.rank()}, in = {};
    channel->receive(0, bytes_of(in[0]), left, kTag);
    channel->receive(1, bytes_of(in[1]), left, kTag);
    channel->send(3, bytes_of(out[2]), right, kOtherTag);
    channel->send(4, bytes_of(out[0]), right, kTag);
    channel->send(5, bytes_of(out[1]), right, kTag);
    std::vector<Completion> ended = wait_for(*channel, 4);
    channel->receive(2, bytes_of(in[2]), left, kOtherTag);
    for (const Completion& more : wait_for(*channel, 6 - ended.size())) ended.push_back(more);
    EXPECT_EQ(in, (std::array<int, 3>{10 + left, 20 + left, 30 + left}));
    std::array<int, 8> seen = {};
    for (const Completion& one : ended) {
      ++seen[one.slot];
      if (one.slot < 3) {
        EXPECT_EQ(one.bytes, sizeof(int));
        EXPECT_EQ(one.from, left);
      } else {
        EXPECT_EQ(one.bytes, 0u);
      }
    }
    EXPECT_EQ(seen, (std::array<int, 8>{1, 1, 1, 1, 1, 1, 0, 0}));
    // The next round's messages find no receive of this one's.
    comm.barrier();
  }
  // Notices of all ranks, this one's too.
  std::vector<int> out(static_cast<std::size_t>(p), comm.rank());
  const auto notices = transport.open(1 + out.size());
  for (int to = 0; to < p; ++to) {
    const auto i = static_cast<std::size_t>(to);
    notices->send_notice(1 + i, bytes_of(out[i]), to, kNoticeTag);
  }
  std::vector<int> from(out.size());
  std::size_t sent = 0;
  for (int got = 0; got < p; ++got) {
    int in = -1;
    notices->receive_notice(0, bytes_of(in), kNoticeTag);
    for (bool is_there = false; !is_there;) {
      for (const Completion& ended : notices->poll()) {
        is_there = is_there || ended.slot == 0;
        if (ended.slot > 0) {
          ++sent;
          continue;
        }
        EXPECT_EQ(in, ended.from);
        ++from[static_cast<std::size_t>(ended.from)];
      }
    }
  }
  static_cast<void>(wait_for(*notices, out.size() - sent));
  EXPECT_EQ(from, std::vector<int>(out.size(), 1));
  comm.barrier();
}

TEST(MpiTransport, KeepsThePromises) {
  Communicator comm;
  MpiTransport mpi(comm);
  check_promises(comm, mpi);
}

TEST(MpiTransport, BehindASlowLinkToo) {
  Communicator comm;
  MpiTransport mpi(comm);
  ThrottledTransport slow(mpi, 1e6);
  check_promises(comm, slow);
}

TEST(MpiTransport, AMessageLongerThanItsBufferIsAnError) {
  Communicator comm;
  // Open MPI 4.1 tells it only between ranks, and of messages of a few bytes.
  if (comm.size() == 1) return;
  MpiTransport mpi(comm);
  const auto channel = mpi.open(2);
  std::vector<std::byte> out(64), in(16);
  channel->receive(0, in, (comm.rank() + comm.size() - 1) % comm.size(), kTag);
  channel->send(1, out, (comm.rank() + 1) % comm.size(), kTag);
  try {
    static_cast<void>(wait_for(*channel, 2));
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication);
    EXPECT_NE(std::string(error.what()).find("a transfer with rank"), std::string::npos)
        << error.what();
  }
  comm.barrier();
}

}  // namespace
}  // namespace dp
