// The ranks of a network in one process and one thread, whose messages arrive as a test plans it.
//
// What MPI promises, and nothing more, from a seed: messages of one rank and tag arrive in order,
// all others in any order; a send ends at any time from the next poll until its message has
// arrived; poll() tells the ends of transfers in any order, some of them later. A quarter of the
// lines between two ranks are slow. What is wrong with
// a caller fails the test: a slot that is taken, a buffer that changes while it is sent.
//
// Faults: `on_send` sees every message before it sets out. It may change its bytes, lose it, or
// stop its sender, of whom nothing is heard from then on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/mpi/transport.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp::testing_support {

class PlannedNetwork {
 public:
  struct Message {
    int from = 0, to = 0, tag = 0;
    bool is_notice = false;
    std::vector<std::byte> bytes;
  };
  enum class Fate { arrives, is_lost, stops_its_sender };
  static constexpr int kAnyRank = -1;

  // Seed 0 is the plainest network: everything arrives and is told at once.
  PlannedNetwork(int ranks, std::uint64_t seed)
      : is_plain_(seed == 0),
        rng_(seed, RandomStream::test, 77),
        untold_(size_of(ranks)),
        is_stopped_(size_of(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      endpoints_.push_back(std::make_unique<Endpoint>(*this, rank, ranks));
    }
  }

  [[nodiscard]] Transport& transport(int rank) { return *endpoints_[size_of(rank)]; }
  [[nodiscard]] bool is_stopped(int rank) const { return is_stopped_[size_of(rank)]; }

  std::function<Fate(Message&)> on_send;

  // A number below n, as the seed has it.
  [[nodiscard]] std::size_t draw(std::size_t n) {
    return static_cast<std::size_t>(rng_.below(n, draws_++));
  }

  // One message may arrive, of those that somebody has asked for; false: there is none.
  bool deliver() {
    std::vector<std::pair<Line*, std::size_t>> ready;  // with the place of the receive
    for (auto& [key, line] : lines_) {
      if (line.messages.empty()) continue;
      const Message& next = line.messages.front().message;
      const auto& receives = receives_[size_of(next.to)];
      const auto it = std::ranges::find_if(receives, [&](const Receive& receive) {
        return receive.tag == next.tag && (receive.from == kAnyRank || receive.from == next.from);
      });
      if (it != receives.end()) {
        ready.emplace_back(&line, static_cast<std::size_t>(it - receives.begin()));
      }
    }
    if (ready.empty()) return false;
    if (!is_plain_ && draw(64) > 0) {
      // Some lines are slow, whatever else there is to do.
      std::erase_if(ready, [](const auto& one) { return one.first->is_slow; });
      if (ready.empty()) return true;
    }
    const auto [line, place] = ready[is_plain_ ? 0 : draw(ready.size())];
    Sent sent = std::move(line->messages.front());
    line->messages.pop_front();
    auto& receives = receives_[size_of(sent.message.to)];
    const Receive receive = receives[place];
    receives.erase(receives.begin() + static_cast<std::ptrdiff_t>(place));
    if (sent.channel != nullptr) end_send(sent);
    if (sent.message.bytes.size() > receive.buffer.size()) {
      throw_error(ErrorKind::communication, "rank {} sent rank {} a message of {} bytes for {}",
                  sent.message.from, sent.message.to, sent.message.bytes.size(),
                  receive.buffer.size());
    }
    std::ranges::copy(sent.message.bytes, receive.buffer.begin());
    receive.channel->end({receive.slot, sent.message.bytes.size(), sent.message.from});
    return true;
  }

  // Whether all ends have been told, but those of ranks that have stopped.
  [[nodiscard]] bool is_told() const {
    for (std::size_t rank = 0; rank < untold_.size(); ++rank) {
      if (untold_[rank] > 0 && !is_stopped_[rank]) return false;
    }
    return true;
  }

 private:
  static std::size_t size_of(int rank) { return static_cast<std::size_t>(rank); }

  class PlannedChannel;
  struct Receive {
    PlannedChannel* channel = nullptr;
    std::size_t slot = 0;
    std::span<std::byte> buffer;
    int from = 0, tag = 0;
  };
  struct Sent {
    Message message;
    std::span<const std::byte> buffer;  // must not change while `channel` waits for its end
    std::vector<std::byte> original;
    PlannedChannel* channel = nullptr;
    std::size_t slot = 0;
  };
  // The messages of one rank and tag to another rank.
  struct Line {
    std::deque<Sent> messages;
    bool is_slow = false;
  };

  class PlannedChannel final : public Channel {
   public:
    PlannedChannel(PlannedNetwork& network, int rank, std::size_t slots)
        : network_(network), rank_(rank), is_taken_(slots) {}

    void receive(std::size_t slot, std::span<std::byte> buffer, int from, int tag) override {
      take(slot);
      std::ranges::fill(buffer, std::byte{0xEE});
      network_.receives_[size_of(rank_)].push_back({this, slot, buffer, from, tag});
    }
    void receive_notice(std::size_t slot, std::span<std::byte> buffer, int tag) override {
      receive(slot, buffer, kAnyRank, tag);
    }
    void send(std::size_t slot, std::span<const std::byte> message, int to, int tag) override {
      take(slot);
      network_.accept(*this, slot, message, {rank_, to, tag, false, {}});
    }
    void send_notice(std::size_t slot, std::span<const std::byte> notice, int to,
                     int tag) override {
      take(slot);
      network_.accept(*this, slot, notice, {rank_, to, tag, true, {}});
    }
    std::span<const Completion> poll() override {
      told_.clear();
      while (!ended_.empty() && (network_.is_plain_ || network_.draw(4) > 0)) {
        const std::size_t at = network_.is_plain_ ? 0 : network_.draw(ended_.size());
        told_.push_back(ended_[at]);
        ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(at));
        is_taken_[told_.back().slot] = false;
        --network_.untold_[size_of(rank_)];
      }
      return told_;
    }

    void end(const Completion& completion) {
      ended_.push_back(completion);
      ++network_.untold_[size_of(rank_)];
    }

   private:
    void take(std::size_t slot) {
      ASSERT_LT(slot, is_taken_.size());
      EXPECT_FALSE(is_taken_[slot]) << "slot " << slot << " of rank " << rank_;
      is_taken_[slot] = true;
    }

    PlannedNetwork& network_;
    int rank_;
    std::vector<bool> is_taken_;  // by slot
    std::vector<Completion> ended_, told_;
  };

  class Endpoint final : public Transport {
   public:
    Endpoint(PlannedNetwork& network, int rank, int ranks)
        : Transport(rank, ranks), network_(network) {}
    std::unique_ptr<Channel> open(std::size_t slots) override {
      return std::make_unique<PlannedChannel>(network_, rank(), slots);
    }

   private:
    PlannedNetwork& network_;
  };

  void accept(PlannedChannel& channel, std::size_t slot, std::span<const std::byte> buffer,
              Message message) {
    if (is_stopped(message.from)) return;
    message.bytes.assign(buffer.begin(), buffer.end());
    Sent sent{message, buffer, message.bytes, &channel, slot};
    const Fate fate = on_send ? on_send(sent.message) : Fate::arrives;
    if (fate == Fate::stops_its_sender) {
      is_stopped_[size_of(message.from)] = true;
      receives_[size_of(message.from)].clear();
      return;
    }
    // The network has taken a copy, or has lost it.
    if (fate == Fate::is_lost || is_plain_ || draw(2) == 0) end_send(sent);
    if (fate == Fate::arrives) {
      const auto [it, is_new] = lines_.try_emplace({message.from, message.to, message.tag});
      if (is_new && !is_plain_) it->second.is_slow = draw(4) == 0;
      it->second.messages.push_back(std::move(sent));
    }
  }

  void end_send(Sent& sent) {
    EXPECT_TRUE(std::ranges::equal(sent.buffer, sent.original))
        << "rank " << sent.message.from << " has changed a message that is under way";
    sent.channel->end({.slot = sent.slot});
    sent.channel = nullptr;
  }

  bool is_plain_;
  CounterRng rng_;
  std::uint64_t draws_ = 0;
  std::vector<std::size_t> untold_;  // by rank: ends that poll() has yet to tell
  std::vector<bool> is_stopped_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::map<std::tuple<int, int, int>, Line> lines_;      // by sender, receiver, tag
  std::map<std::size_t, std::deque<Receive>> receives_;  // by rank, in the order of receive()
};

}  // namespace dp::testing_support
