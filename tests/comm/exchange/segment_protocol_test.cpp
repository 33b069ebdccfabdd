// The exchanges' protocol on a network of the test's own (planned_network.hpp): the same bits
// whatever the order of messages of different ranks; and where a message is lost or damaged, or a
// rank stops, nobody delivers a wrong sum.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange/message_header.hpp"
#include "comm/exchange/segment_exchange.hpp"
#include "comm/mpi/throttled_transport.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "tests/comm/exchange/exchange_fleet.hpp"
#include "tests/comm/exchange/planned_network.hpp"

namespace dp::testing_support {
namespace {

constexpr std::uint32_t kBucket = 7;
// With the second codec, direct sends no start notices.
constexpr const char* kUsualAndBrief[] = {"q8:block=32", "ecq:bits=0.1"};
constexpr std::size_t kRows = 27, kColumns = 15, kFloats = kRows * kColumns;

// What one rank has in an exchange, and where it is in its steps.
struct Member {
  std::unique_ptr<ThrottledTransport> throttled;
  std::vector<float> gradient = std::vector<float>(kFloats);
  std::vector<float> residual = std::vector<float>(kFloats);
  std::unique_ptr<LocalVelocity> velocity;
  MadeExchange made;
  std::optional<BufferSet> buffers;
  std::uint64_t step = 0;
  enum class State { between, posted, started } state = State::between;
  std::vector<std::vector<float>> sums;  // by step, of those that were delivered
};

// All ranks of one exchange, driven by one thread in an order that a seed decides.
class Group {
 public:
  Group(const Case& c, int ranks, const std::string& spec, std::uint64_t seed,
        double throttle_bits_per_s = 0.0)
      : network(ranks, seed),
        spec_(parse_codec_spec(spec)),
        exact_(make_codec(parse_codec_spec("none"))),
        is_plain_(seed == 0),
        members(static_cast<std::size_t>(ranks)) {
    const TensorSlot tensor{.offset = 0, .rows = kRows, .columns = kColumns};
    for (int rank = 0; rank < ranks; ++rank) {
      Member& member = of(rank);
      Transport* transport = &network.transport(rank);
      if (throttle_bits_per_s > 0.0) {
        member.throttled = std::make_unique<ThrottledTransport>(*transport, throttle_bits_per_s,
                                                                [this] { return now_s_; });
        transport = member.throttled.get();
      }
      member.velocity = std::make_unique<LocalVelocity>(
          kFloats, VelocityOptions{.ranks = static_cast<std::size_t>(ranks)});
      const ExchangeKind& kind = exchange_kind(spec_);
      member.made =
          kind.make({.setup = {.transport = transport,
                               .bucket = kBucket,
                               .stream = 3,
                               .gradient = member.gradient,
                               .residual = spec_.feedback ? member.residual.data() : nullptr,
                               .codec = exact_.get(),
                               .exact = exact_.get(),
                               .seed = 5,
                               .segment = 32,
                               .window = 2,
                               .hosts = c.hosts},
                     .segment_bytes = 32 * sizeof(float),
                     .spec = &spec_,
                     .topology = &find_topology(c.topology),
                     .tensors = {&tensor, 1},
                     .velocity = member.velocity.get()});
      member.buffers.emplace(exchange(rank).needs());
    }
  }

  [[nodiscard]] Member& of(int rank) { return members[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Exchange& exchange(int rank) { return *of(rank).made.exchange; }
  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }

  // Runs so many steps on every rank, until all are over or nothing moves any more. A rank that is
  // through with a step may begin the next one while others are still in it. A rank that
  // `stays_away` posts its receives and never starts.
  void run(std::uint64_t steps, int stays_away = -1) {
    std::size_t still = 0;  // looks since something moved
    while (still < 64 * members.size()) {
      const int rank =
          is_plain_ ? next_++ % size() : static_cast<int>(network.draw(members.size()));
      bool has_moved = !network.is_stopped(rank) && act(rank, steps, stays_away);
      if (is_plain_ || network.draw(3) > 0) has_moved = network.deliver() || has_moved;
      if (!has_moved) now_s_ += 2e-4;
      still = has_moved || !network.is_told() ? 0 : still + 1;
    }
  }

  [[nodiscard]] bool is_over(int rank, std::uint64_t steps) {
    return of(rank).state == Member::State::between && of(rank).step == steps;
  }

  PlannedNetwork network;

 private:
  bool act(int rank, std::uint64_t steps, int stays_away) {
    Member& member = of(rank);
    switch (member.state) {
      case Member::State::between:
        if (member.step == steps || waits()) return false;
        fill_normal(member.gradient, 100 * member.step + static_cast<std::uint64_t>(rank));
        exchange(rank).post_receives(*member.buffers, member.step);
        member.state = Member::State::posted;
        return true;
      case Member::State::posted:
        if (rank == stays_away || waits()) return exchange(rank).progress();
        exchange(rank).prepare();
        exchange(rank).start();
        member.state = Member::State::started;
        return true;
      case Member::State::started:
        break;
    }
    const bool has_moved = exchange(rank).progress();
    if (exchange(rank).delivered() && member.sums.size() == member.step) {
      EXPECT_TRUE(exchange(rank).finite());
      member.sums.push_back(member.gradient);
    }
    if (!exchange(rank).done()) return has_moved;
    member.state = Member::State::between;
    ++member.step;
    return true;
  }
  [[nodiscard]] bool waits() { return !is_plain_ && network.draw(8) > 0; }

  CodecSpec spec_;
  std::unique_ptr<Codec> exact_;
  bool is_plain_;
  int next_ = 0;
  double now_s_ = 0.0;
  std::vector<Member> members;
};

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(SegmentProtocol, AnyOrderOfMessagesGivesTheSameBits) {
  constexpr std::uint64_t kSteps = 3, kSeeds = 4;
  for (int ranks = 2; ranks <= 6; ++ranks) {
    for (const Case& c : all_cases(ranks)) {
      for (const char* spec : {"none", "q8:block=32", "topk:ratio=0.1", "dgc:ratio=0.1",
                               "ecq:bits=0.1", "powersgd:rank=2"}) {
        Group plain(c, ranks, spec, 0);
        plain.run(kSteps);
        for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
          SCOPED_TRACE(fmt::format("{} ranks, {}, {}, seed {}", ranks, c.text(), spec, seed));
          // The last one on slow links: a message of 160 bytes takes 12.8 ms, 64 looks. Segments of
          // few bits are 16 times as long.
          const double slow = has_few_bits(parse_codec_spec(spec)) ? 16e5 : 1e5;
          const double throttle = seed + 1 == kSeeds ? slow : 0.0;
          Group group(c, ranks, spec, seed, throttle);
          if (seed > 0) group.run(kSteps);
          Group& ran = seed > 0 ? group : plain;
          for (int rank = 0; rank < ranks; ++rank) {
            ASSERT_TRUE(ran.is_over(rank, kSteps)) << "rank " << rank << " does not end";
            ASSERT_EQ(ran.of(rank).sums.size(), kSteps);
            for (std::size_t step = 0; step < kSteps; ++step) {
              EXPECT_TRUE(are_same(ran.of(rank).sums[step], plain.of(0).sums[step]))
                  << "rank " << rank << ", step " << step;
            }
            EXPECT_TRUE(are_same(ran.of(rank).residual, plain.of(rank).residual))
                << "rank " << rank;
          }
        }
      }
    }
  }
}

// One network a fault: the fault is done to message `at` of all that are sent. Looks at what every
// rank has delivered, and returns what was thrown, if something was.
class Faults {
 public:
  using Message = PlannedNetwork::Message;
  using Fate = PlannedNetwork::Fate;
  static constexpr int kRanks = 4;
  static constexpr std::uint64_t kSteps = 2;

  Faults(const Case& c, const std::string& spec)
      : case_(c), spec_(spec), whole_(c, kRanks, spec, 0) {
    whole_.network.on_send = [this](Message& message) {
      sent_.push_back(message);
      return Fate::arrives;
    };
    whole_.run(kSteps);
  }

  [[nodiscard]] std::size_t messages() const { return sent_.size(); }
  // The message that the fault was done to, as it was sent.
  [[nodiscard]] const Message& met() const { return met_; }
  [[nodiscard]] Group& group() { return *group_; }

  std::string run(std::size_t at, std::uint64_t seed, const std::function<Fate(Message&)>& fault) {
    SCOPED_TRACE(fmt::format("{}, {}, message {}", case_.text(), spec_, at));
    group_ = std::make_unique<Group>(case_, kRanks, spec_, seed);
    group_->network.on_send = [&, count = std::size_t{0}](Message& message) mutable {
      if (count++ != at) return Fate::arrives;
      met_ = message;
      return fault(message);
    };
    std::string said;
    try {
      group_->run(kSteps);
    } catch (const Error& error) {
      said = error.what();
      // Ranks that go on from different steps have loaded states that do not belong together.
      const bool is_of_other_step = said.find("continues from step") != said.npos;
      EXPECT_EQ(error.kind(), is_of_other_step ? ErrorKind::data : ErrorKind::communication);
    }
    group_->network.on_send = {};
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& sums = group_->of(rank).sums;
      for (std::size_t step = 0; step < sums.size(); ++step) {
        EXPECT_TRUE(are_same(sums[step], whole_.of(0).sums[step]))
            << "rank " << rank << " delivered a wrong sum in step " << step;
      }
    }
    return said;
  }

  [[nodiscard]] bool all_are_over() {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!group_->is_over(rank, kSteps)) return false;
    }
    return true;
  }

 private:
  Case case_;
  std::string spec_;
  Group whole_;
  std::vector<Message> sent_;
  Message met_;
  std::unique_ptr<Group> group_;
};

// The receiver makes no progress, which its caller's deadline sees; or it gets the next message
// instead and says so.
TEST(SegmentProtocol, ALostMessageIsNoWrongSum) {
  for (const Case& c : all_cases(Faults::kRanks)) {
    for (const char* spec : kUsualAndBrief) {
      Faults faults(c, spec);
      for (std::size_t at = 0; at < faults.messages(); ++at) {
        const std::string said = faults.run(
            at, at, [](PlannedNetwork::Message&) { return PlannedNetwork::Fate::is_lost; });
        if (said.empty()) {
          EXPECT_FALSE(faults.group().is_over(faults.met().to, Faults::kSteps)) << c.text() << at;
        } else {
          EXPECT_NE(said.find(fmt::format("from rank {}", faults.met().from)), said.npos) << said;
        }
      }
    }
  }
}

// Any bit of any message, in header, note, payload or seal, of what is forwarded, too.
TEST(SegmentProtocol, AFlippedBitEndsTheRunAndNamesBothRanks) {
  const CounterRng rng(10, RandomStream::test);
  for (const Case& c : all_cases(Faults::kRanks)) {
    for (const char* spec : {"none", "q8:block=32", "topk:ratio=0.1", "dgc:ratio=0.1", "ecq",
                             "ecq:bits=0.1", "powersgd:rank=2"}) {
      Faults faults(c, spec);
      for (std::size_t at = 0; at < faults.messages(); ++at) {
        // In turn: the flags, the rest of the header, the seal, and any bit.
        std::size_t bit = 0;
        const std::string said = faults.run(at, at % 3, [&](PlannedNetwork::Message& message) {
          const std::size_t bits = 8 * message.bytes.size();
          const std::size_t first[] = {8, 0, bits - 8 * kSealBytes, 0};
          const std::size_t count[] = {2, 8 * kMessageHeaderBytes, 8 * kSealBytes, bits};
          bit = first[at % 4] + rng.below(count[at % 4], at);
          message.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
          return PlannedNetwork::Fate::arrives;
        });
        EXPECT_NE(said.find(fmt::format("damaged on the way between rank {} and rank {}:",
                                        faults.met().from, faults.met().to)),
                  said.npos)
            << fmt::format("{}, {}, message {}, bit {}: {}", c.text(), spec, at, bit, said);
        EXPECT_NE(said.find(fmt::format("bucket {} in step ", kBucket)), said.npos) << said;
      }
    }
  }
}

// What a rank that runs another program would send, with the right seal.
TEST(SegmentProtocol, AnUnexpectedMessageNamesItsSenderBucketAndStep) {
  const CounterRng rng(9, RandomStream::test);
  for (const Case& c : all_cases(Faults::kRanks)) {
    for (const char* spec : {"none", "q8:block=32", "topk:ratio=0.1"}) {
      Faults faults(c, spec);
      for (std::size_t at = 0; at < faults.messages(); ++at) {
        std::string what;
        std::uint32_t step = 0;
        bool has_other_step = false;
        const std::string said = faults.run(at, at % 3, [&](PlannedNetwork::Message& message) {
          std::memcpy(&step, &message.bytes[4], sizeof step);
          message.bytes.resize(message.bytes.size() - kSealBytes);
          const std::size_t kind = message.is_notice ? rng.below(2, at) : rng.below(4, at);
          if (kind == 0) {
            // Any bit of the header but the one that says "not finite".
            std::size_t bit = rng.below(8 * kMessageHeaderBytes - 1, 1000 + at);
            if (bit >= 8) ++bit;
            message.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
            what = fmt::format("bit {} of the header", bit);
            has_other_step = bit / 32 == 1;
          } else if (kind == 1) {
            message.bytes.resize(rng.below(kMessageHeaderBytes, 2000 + at));
            what = "less than a header";
          } else if (kind == 2) {
            message.bytes.pop_back();
            what = "a byte is missing";
          } else {
            std::fill(message.bytes.begin() + kMessageHeaderBytes, message.bytes.end(),
                      std::byte{0xFF});
            what = "a payload of ones";
          }
          message.bytes.resize(message.bytes.size() + kSealBytes);
          seal(message.bytes);
          return PlannedNetwork::Fate::arrives;
        });
        SCOPED_TRACE(fmt::format("{}, {}, message {}, {}: {}", c.text(), spec, at, what, said));
        EXPECT_NE(said.find(fmt::format("rank {} ", faults.met().to)), said.npos);
        EXPECT_NE(said.find(fmt::format("rank {}", faults.met().from)), said.npos);
        EXPECT_NE(said.find(fmt::format("step {}", step)), said.npos);
        EXPECT_EQ(said.find("continues from step") != said.npos, has_other_step);
        if (has_other_step) continue;
        EXPECT_NE(said.find(fmt::format("bucket {}", kBucket)), said.npos);
      }
    }
  }
}

TEST(SegmentProtocol, ARankThatStopsLeavesNoWrongSum) {
  for (const Case& c : all_cases(Faults::kRanks)) {
    for (const char* spec : kUsualAndBrief) {
      Faults faults(c, spec);
      for (std::size_t at = 0; at < faults.messages(); ++at) {
        const std::string said = faults.run(at, at, [](PlannedNetwork::Message&) {
          return PlannedNetwork::Fate::stops_its_sender;
        });
        EXPECT_EQ(said, "") << c.text();
        EXPECT_FALSE(faults.all_are_over()) << c.text();
        // Nobody ends a step that the stopped rank has not begun.
        const std::uint64_t reached = faults.group().of(faults.met().from).step;
        for (int rank = 0; rank < Faults::kRanks; ++rank) {
          EXPECT_LE(faults.group().of(rank).step, reached + 1) << c.text();
        }
      }
    }
  }
}

// A rank that has not begun: the others deliver nothing, and it is told from a slow network.
TEST(SegmentProtocol, OthersWaitForARankThatHasNotBegun) {
  constexpr int kRanks = 4, kLate = 1;
  for (const Case& c : all_cases(kRanks)) {
    for (const char* spec : kUsualAndBrief) {
      SCOPED_TRACE(c.text() + ", " + spec);
      Group group(c, kRanks, spec, 0);
      group.run(1, kLate);
      int waiting = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_FALSE(group.exchange(rank).delivered());
        waiting += group.exchange(rank).waits_for_peer() ? 1 : 0;
      }
      EXPECT_GT(waiting, 0);
      group.run(1);
      for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(group.is_over(rank, 1));
    }
  }
}

// At few bits, direct sends one partial sum to each owner, one total from each, and nothing else.
TEST(SegmentProtocol, BriefExchangesSendNoStartNotices) {
  constexpr int kRanks = 4;
  for (const Case& c : all_cases(kRanks)) {
    for (const char* spec : kUsualAndBrief) {
      int notices = 0, others = 0;
      Group group(c, kRanks, spec, 0);
      group.network.on_send = [&](PlannedNetwork::Message& message) {
        ++(message.is_notice ? notices : others);
        return PlannedNetwork::Fate::arrives;
      };
      group.run(1);
      const bool is_brief = c.topology == "direct" && std::string_view(spec).starts_with("ecq");
      EXPECT_EQ(notices > 0, !is_brief) << c.text() << ", " << spec;
      if (is_brief) {
        EXPECT_EQ(others, 2 * kRanks * (kRanks - 1));
      }
    }
  }
}

}  // namespace
}  // namespace dp::testing_support
