#include "comm/mpi/communicator.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/mpi/send_bytes.hpp"
#include "comm/replica_hash.hpp"
#include "tests/support/skipped.hpp"

namespace {

std::chrono::milliseconds pause_of_a_piece{0};

}  // namespace

// A slow link between two ranks.
extern "C" int MPI_Issend(const void* data, int count, MPI_Datatype type, int to, int tag,
                          MPI_Comm comm, MPI_Request* request) {
  std::this_thread::sleep_for(pause_of_a_piece);
  return PMPI_Issend(data, count, type, to, tag, comm, request);
}

namespace dp {
namespace {

TEST(Communicator, KnowsItsRanksAndHosts) {
  Communicator comm;
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(comm.rank(), rank);
  EXPECT_EQ(comm.size(), size);
  EXPECT_EQ(comm.hosts().size(), static_cast<std::size_t>(size));
  EXPECT_FALSE(comm.host().empty());
  // The tests run on one host.
  EXPECT_EQ(comm.local_rank(), rank);
  EXPECT_EQ(comm.local_size(), size);
}

TEST(Communicator, Broadcasts) {
  Communicator comm;
  for (const std::string& text : {std::string(), std::string("q8"), std::string(100'000, 'x')}) {
    for (int root = 0; root < comm.size(); ++root) {
      std::string mine = comm.rank() == root ? text : "something else";
      comm.broadcast(mine, root);
      EXPECT_EQ(mine, text);
    }
  }
}

TEST(Communicator, Gathers) {
  Communicator comm;
  const auto texts = comm.gather(std::string(static_cast<std::size_t>(comm.rank()), 'a'));
  struct Row {
    int rank;
    double value;
  };
  const Row mine[2] = {{comm.rank(), 0.5}, {comm.rank(), 1.5}};
  const auto rows = comm.gather_rows(std::span<const Row>(mine));
  const auto everywhere = comm.all_gather(10 * comm.rank());
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    EXPECT_EQ(everywhere[i], 10 * rank);
    if (comm.rank() != 0) continue;
    EXPECT_EQ(texts[i], std::string(i, 'a'));
    EXPECT_EQ(rows[2 * i].rank, rank);
    EXPECT_EQ(rows[2 * i + 1].value, 1.5);
  }
  if (comm.rank() != 0) {
    EXPECT_TRUE(texts.empty());
    EXPECT_TRUE(rows.empty());
  }
}

// Rank r's part of what every rank has is r + 1 values long.
TEST(Communicator, DistributesPartsOfDifferentSize) {
  Communicator comm;
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::size_t> begins = {0};
  for (std::size_t r = 0; r < ranks; ++r) begins.push_back(begins.back() + r + 1);
  std::vector<float> mine(begins.back());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    mine[i] = static_cast<float>(1000 * comm.rank()) + static_cast<float>(i);
  }
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::size_t n = me + 1;
  std::vector<float> all(n * ranks);
  const std::uint64_t before = comm.control_bytes();
  comm.all_to_all(std::span<const float>(mine), begins, std::span(all));
  EXPECT_EQ(comm.control_bytes() - before,
            (mine.size() - n) * sizeof(float) + (ranks - 1) * kSealBytes);
  for (std::size_t sender = 0; sender < ranks; ++sender) {
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(all[sender * n + i], static_cast<float>(1000 * sender + begins[me] + i)) << sender;
    }
  }
}

TEST(Communicator, CountsTheBytesOfItsCalls) {
  Communicator comm;
  const auto others = static_cast<std::uint64_t>(comm.size() - 1);
  std::uint64_t expected = comm.control_bytes();
  const auto expect_more = [&](std::uint64_t bytes, const char* call) {
    expected += bytes;
    EXPECT_EQ(comm.control_bytes(), expected) << call;
  };
  std::string text(1000, 'x');
  comm.broadcast(text, comm.size() - 1);
  expect_more(comm.rank() + 1 == comm.size() ? others * (1000 + 16 + 4) : 0, "broadcast");
  const std::int64_t rows[3] = {1, 2, 3};
  static_cast<void>(comm.gather_rows(std::span<const std::int64_t>(rows)));
  expect_more(comm.gather_cost(24), "gather_rows");
  EXPECT_EQ(comm.gather_cost(24), comm.rank() == 0 ? 0u : 24u + 4u);
  // Its length and checksum go to all, its bytes to rank 0.
  static_cast<void>(comm.gather("abc"));
  expect_more(others * (16 + 4) + (comm.rank() == 0 ? 0 : 3), "gather");
  static_cast<void>(comm.all_gather(1.5f));
  expect_more(others * (4 + 4), "all_gather");
  static_cast<void>(comm.all_sum(0.5));
  expect_more(others * (8 + 4), "sum of doubles");
  std::vector<double> values(Communicator::kPart + 3);
  comm.all_sum(std::span(values));
  expect_more(others * (8 * values.size() + 2 * 4), "sum of many");  // in two parts
  static_cast<void>(comm.all_sum(std::int64_t{1}));
  expect_more(others * (8 + 4), "sum of integers");
  comm.agree(true, "");
  expect_more(others * (4 + 4), "agreement");
  comm.barrier();
  expect_more(0, "barrier");
}

TEST(Communicator, Sums) {
  Communicator comm;
  const int p = comm.size();
  EXPECT_EQ(comm.all_sum(std::int64_t{comm.rank() + 1}), p * (p + 1) / 2);
  // In the order of ranks: ((1e16 + 1) + 1) + ... stays 1e16, any other grouping of the ones does
  // not.
  double want = 1e16;
  for (int rank = 1; rank < p; ++rank) want += 1.0;
  EXPECT_EQ(comm.all_sum(comm.rank() == 0 ? 1e16 : 1.0), want);
  std::vector<double> pair = {1.0, 2.0};
  comm.all_sum(std::span(pair));
  EXPECT_EQ(pair, (std::vector<double>{1.0 * p, 2.0 * p}));
  std::vector<float> floats = {0.5f, static_cast<float>(comm.rank())};
  comm.all_sum(std::span(floats));
  EXPECT_EQ(floats, (std::vector<float>{0.5f * static_cast<float>(p),
                                        static_cast<float>(p * (p - 1) / 2)}));
  std::vector<double> parts(Communicator::kPart + 3);  // the last of them is short
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<double>(i) + comm.rank();
  comm.all_sum(std::span(parts));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] != p * static_cast<double>(i) + p * (p - 1) / 2) ++wrong;
  }
  EXPECT_EQ(wrong, 0u);
  comm.barrier();
}

TEST(Communicator, AgreesOnTheLowestFailingRank) {
  Communicator comm;
  comm.agree(true, "");
  for (int first = 0; first < comm.size(); ++first) {
    try {
      comm.agree(comm.rank() < first, fmt::format("rank {} has no data", comm.rank()),
                 ErrorKind::data);
      ADD_FAILURE() << "agreed";
    } catch (const AgreedError& error) {
      EXPECT_STREQ(error.what(), fmt::format("rank {} has no data", first).c_str());
      EXPECT_EQ(error.kind(), ErrorKind::data);
    }
  }
}

TEST(Communicator, TogetherTurnsOneRanksExceptionIntoAllRanks) {
  Communicator comm;
  comm.together([] {});
  const int last = comm.size() - 1;
  try {
    comm.together([&] {
      if (comm.rank() == last) throw_error(ErrorKind::device, "no memory on rank {}", last);
    });
    ADD_FAILURE() << "agreed";
  } catch (const AgreedError& error) {
    EXPECT_STREQ(error.what(), fmt::format("no memory on rank {}", last).c_str());
    EXPECT_EQ(error.kind(), ErrorKind::device);
  }
}

TEST(ReplicaHash, SameBitsSameHash) {
  Communicator comm;
  const std::vector<float> values(1000, 1.5f);
  const std::uint64_t hash = agree_on_hash(comm, values);
  EXPECT_EQ(comm.all_gather(hash)[0], hash);
  EXPECT_NO_THROW(agree_on_hash(comm, {}));
}

// If two ranks differ, nobody knows which one is right.
TEST(ReplicaHash, OtherBitsAreNamed) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 3);
  std::vector<float> values(1000, 1.5f);
  // Zero and minus zero are equal and differ in one bit.
  values[500] = comm.rank() == 1 ? -0.0f : 0.0f;
  try {
    agree_on_hash(comm, values);
    ADD_FAILURE() << "taken for equal";
  } catch (const AgreedError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 1 on host "), std::string::npos) << text;
    EXPECT_EQ(text.find("rank 2"), std::string::npos) << text;
    EXPECT_EQ(text.find("rank 0"), std::string::npos) << text;
  }
}

// The bytes take longer than ranks that answer are waited for.
TEST(SendBytes, TheOthersWaitForASlowLink) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  comm.set_timeout_s(1);
  comm.set_patience({.with_living = 1.5, .with_busy = 60});
  std::vector<std::byte> bytes(1'250'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  comm.barrier();
  if (comm.rank() == 0) {
    pause_of_a_piece = std::chrono::milliseconds(100);
    send_bytes(comm, bytes, comm.size() - 1);
    pause_of_a_piece = {};
    send_bytes(comm, {}, comm.size() - 1);
  } else if (comm.rank() == comm.size() - 1) {
    EXPECT_EQ(receive_bytes(comm, 0), bytes);
    EXPECT_TRUE(receive_bytes(comm, 0).empty());
  }
  EXPECT_EQ(comm.whereabouts().is_busy, 0u);
  comm.barrier();
}

}  // namespace
}  // namespace dp
