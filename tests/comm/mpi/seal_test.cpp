// A bit that is flipped between two ranks, in everything that they send each other beside the
// exchange of gradients (segment_protocol_test.cpp) and in real runs (failure_test.sh): the
// receiver says between whom, before it uses anything.
//
// MPI's functions that send stand here once more, under the names that the library calls: they flip
// a bit of a copy and pass it on.
#include "comm/mpi/seal.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/clock_offset.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/send_bytes.hpp"
#include "comm/mpi/tags.hpp"
#include "comm/network/link_probe.hpp"
#include "tests/support/skipped.hpp"

namespace {

struct Flip {
  int skipped = -1;  // the number of messages before the one that is damaged; negative: none is
  std::size_t bit = 0;
};
Flip planned;
std::size_t flips = 0;
std::deque<std::vector<std::byte>> copies;  // MPI may read them until the process ends

const void* damaged(const void* data, std::size_t bytes) {
  if (planned.skipped < 0 || planned.skipped-- > 0) return data;
  const auto* begin = static_cast<const std::byte*>(data);
  std::vector<std::byte>& copy = copies.emplace_back(begin, begin + bytes);
  const std::size_t bit = planned.bit % (8 * bytes);
  copy[bit / 8] ^= std::byte{1} << (bit % 8);
  ++flips;
  return copy.data();
}
std::size_t bytes_of(int count, MPI_Datatype type) {
  int size = 0;
  MPI_Type_size(type, &size);
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
}
int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

}  // namespace

extern "C" {
int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  return PMPI_Isend(damaged(data, bytes_of(n, type)), n, type, to, tag, comm, request);
}
// Not synchronous, so that the sender does not wait for a receiver that has thrown.
int MPI_Issend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request* request) {
  return MPI_Isend(data, n, type, to, tag, comm, request);
}
int MPI_Ibcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  void* sent = rank_in(comm) == root ? const_cast<void*>(damaged(data, bytes_of(n, type))) : data;
  return PMPI_Ibcast(sent, n, type, root, comm, request);
}
int MPI_Igather(const void* data, int n, MPI_Datatype type, void* all, int m, MPI_Datatype t,
                int root, MPI_Comm comm, MPI_Request* request) {
  return PMPI_Igather(damaged(data, bytes_of(n, type)), n, type, all, m, t, root, comm, request);
}
int MPI_Igatherv(const void* data, int n, MPI_Datatype type, void* all, const int* counts,
                 const int* begins, MPI_Datatype t, int root, MPI_Comm comm, MPI_Request* request) {
  return PMPI_Igatherv(damaged(data, bytes_of(n, type)), n, type, all, counts, begins, t, root,
                       comm, request);
}
int MPI_Iallgather(const void* data, int n, MPI_Datatype type, void* all, int m, MPI_Datatype t,
                   MPI_Comm comm, MPI_Request* request) {
  return PMPI_Iallgather(damaged(data, bytes_of(n, type)), n, type, all, m, t, comm, request);
}
// Only the last rank damages anything, so its copy holds all of its parts.
int MPI_Ialltoall(const void* data, int n, MPI_Datatype type, void* all, int m, MPI_Datatype t,
                  MPI_Comm comm, MPI_Request* request) {
  const std::size_t bytes = bytes_of(n, type) * (static_cast<std::size_t>(rank_in(comm)) + 1);
  return PMPI_Ialltoall(damaged(data, bytes), n, type, all, m, t, comm, request);
}
int MPI_Ialltoallv(const void* data, const int* counts, const int* begins, MPI_Datatype type,
                   void* all, const int* n, const int* b, MPI_Datatype t, MPI_Comm comm,
                   MPI_Request* request) {
  const auto last = static_cast<std::size_t>(rank_in(comm));
  const std::size_t bytes = bytes_of(begins[last] + counts[last], type);
  return PMPI_Ialltoallv(damaged(data, bytes), counts, begins, type, all, n, b, t, comm, request);
}
}

namespace dp {
namespace {

struct Call {
  const char* name;
  int messages;  // that the last rank hands to MPI, each of which is damaged once
  std::function<void(Communicator&)> run;
  bool is_for_rank_0 = false;  // and for nobody else
};

std::vector<Call> calls() {
  return {
      {"broadcast", 2,
       [](Communicator& comm) {
         std::string text = "a text";
         comm.broadcast(text, comm.size() - 1);
       }},
      {"gather, heads", 1, [](Communicator& comm) { (void)comm.gather("a text"); }},
      {"gather_rows", 2,
       [](Communicator& comm) {
         const double rows[3] = {1, 2, 3};
         (void)comm.gather_rows(std::span<const double>(rows));
       },
       true},
      {"all_gather", 2, [](Communicator& comm) { (void)comm.all_gather(1.5); }},
      {"all_sum of integers", 2, [](Communicator& comm) { (void)comm.all_sum(std::int64_t{7}); }},
      {"all_sum of doubles", 2, [](Communicator& comm) { (void)comm.all_sum(0.5); }},
      {"agree", 2, [](Communicator& comm) { comm.agree(true, ""); }},
  };
}

// The sentence between the last rank and this one, where this one has received something.
void expect_said(const Communicator& comm, const std::string& said) {
  const std::string host = comm.host();
  const std::string ranks = fmt::format(
      "damaged on the way between rank {} and rank {} (both on host {}):", comm.size() - 1,
      comm.rank(), host);
  EXPECT_NE(said.find(ranks), said.npos) << "'" << said << "'";
}

void expect_said_on_0(const Communicator& comm, const std::string& said) {
  if (comm.rank() == 0) {
    expect_said(comm, said);
  } else {
    EXPECT_EQ(said, "");
  }
}

// Runs it on all ranks, while the last one damages its message number `skipped`. Returns what this
// rank throws.
std::string run(Communicator& all, const Call& call, int skipped, std::size_t bit) {
  Communicator comm;  // messages of a call that was left early stay on it
  if (comm.rank() == comm.size() - 1) planned = {.skipped = skipped, .bit = bit};
  std::string said;
  try {
    call.run(comm);
  } catch (const Error& error) {
    said = error.what();
    // The damaged value is also the sender's own: an agreement may then fail in its way.
    if (comm.rank() == comm.size() - 1) {
      said.clear();
    } else {
      EXPECT_EQ(error.kind(), ErrorKind::communication);
    }
  }
  EXPECT_EQ(planned.skipped, -1) << "fewer messages than that";
  planned.skipped = -1;
  all.barrier();
  return said;
}

TEST(Seal, FindsAnyFlippedBitOfACall) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  for (const Call& call : calls()) {
    for (int message = 0; message < call.messages; ++message) {
      for (const std::size_t bit : {0u, 13u, 1000u}) {
        SCOPED_TRACE(fmt::format("{}, message {}, bit {}", call.name, message, bit));
        const std::size_t before = flips;
        const std::string said = run(all, call, message, bit);
        const bool is_sender = all.rank() == all.size() - 1;
        EXPECT_EQ(flips - before, is_sender ? 1u : 0u);
        if (is_sender || (call.is_for_rank_0 && all.rank() > 0)) {
          EXPECT_EQ(said, "");
        } else {
          expect_said(all, said);
        }
      }
    }
  }
}

TEST(Seal, GatheredTextsAreChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const Call call = {"gather", 3, [](Communicator& comm) { (void)comm.gather("a text"); }};
  const std::string said = run(all, call, 2, 9);  // behind its head and that one's checksum
  expect_said_on_0(all, said);
}

TEST(Seal, PartsForEachRankAreChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const auto ranks = static_cast<std::size_t>(all.size());
  const Call call = {"all_to_all", 2, [&](Communicator& comm) {
                       std::vector<std::size_t> begins;
                       for (std::size_t r = 0; r <= ranks; ++r) begins.push_back(r * 5);
                       const std::vector<float> mine(5 * ranks, 1.0f);
                       std::vector<float> theirs(5 * ranks);
                       comm.all_to_all(std::span<const float>(mine), begins, std::span(theirs));
                     }};
  for (int message = 0; message < 2; ++message) {
    // Within what rank 0 gets.
    const std::string said = run(all, call, message, 17);
    expect_said_on_0(all, said);
  }
}

// The length, a piece in the middle of it, and the last one.
TEST(Seal, BlocksOfBytesAreChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const auto call_of = [](std::size_t size) {
    return Call{"send_bytes", 0, [size](Communicator& comm) {
                  const int last = comm.size() - 1;
                  if (comm.rank() == last) send_bytes(comm, std::vector<std::byte>(size), 0);
                  if (comm.rank() == 0) (void)receive_bytes(comm, last);
                }};
  };
  const auto expect = [&](const std::string& said) { expect_said_on_0(all, said); };
  for (const std::size_t bit : {0u, 63u, 70u}) expect(run(all, call_of(100), 0, bit));
  for (const std::size_t bit : {0u, 500u}) expect(run(all, call_of(100), 1, bit));
  expect(run(all, call_of((128u << 10) + 100), 3, 805));
}

// Sends rank 0 a value whose seal is wrong, from the last rank.
void send_damaged(Communicator& comm, std::span<const std::byte> message, int tag) {
  planned = {.skipped = 0, .bit = 0};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, tag, comm.handle(),
            &request);
  comm.wait(request, "a test");
}

TEST(Seal, AClockIsChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const Call call = {"a clock", 0, [](Communicator& comm) {
                       if (comm.rank() == comm.size() - 1) {
                         send_damaged(comm, Sealed(std::int64_t{0}).bytes(), kClockTag);
                       } else {
                         (void)read_clock_offset(comm, [] { return std::int64_t{5}; });
                       }
                     }};
  expect_said_on_0(all, run(all, call, -1, 0));
}

TEST(Seal, APingThatMeasuresTheNetworkIsChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  const Call call = {"a ping", 0, [](Communicator& comm) {
                       if (comm.rank() == comm.size() - 1) {
                         send_damaged(comm, Sealed(std::uint8_t{0}).bytes(), kProbeTag);
                       } else if (comm.rank() == 0) {
                         (void)probe_link(comm);
                       }
                     }};
  expect_said_on_0(all, run(all, call, -1, 0));
}

// It is kept, since the thread that meets it may be one that cannot say so.
TEST(Seal, ASignOfLifeIsChecked) {
  Communicator all;
  DP_NEEDS_RANKS(all, 2);
  Liveness liveness(all.handle());
  if (all.rank() == all.size() - 1) {
    planned = {.skipped = 0, .bit = 64};
    liveness.ask();
  }
  all.barrier();
  if (all.rank() == 0) {
    for (int times = 0; times < 2; ++times) {
      std::string said;
      for (int look = 0; look < 10'000 && said.empty(); ++look) {
        try {
          liveness.serve({});
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::communication);
          said = error.what();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      EXPECT_NE(
          said.find(fmt::format("damaged on the way between rank {} and rank 0:", all.size() - 1)),
          said.npos)
          << said;
    }
  }
  all.barrier();
}

TEST(Seal, IsOverAllOtherBytes) {
  std::vector<std::byte> message(100, std::byte{5});
  seal(message);
  EXPECT_TRUE(is_intact(message));
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    message[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(is_intact(message)) << bit;
    message[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (std::size_t n = 0; n < 100; ++n) EXPECT_FALSE(is_intact(std::span(message).first(n))) << n;
}

}  // namespace
}  // namespace dp
