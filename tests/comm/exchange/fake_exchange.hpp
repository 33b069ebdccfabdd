// An exchange without ranks and messages: a test says when it has delivered and is done, and looks
// at what was called.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/exchange/exchange.hpp"

namespace dp::testing_support {

struct FakeExchange final : Exchange {
  // What the test sets.
  bool has_delivered = false, is_done = false, waits = false;
  bool moves = false;             // what the next progress() returns; it clears it
  BufferNeeds buffers = {1, 64};  // what it needs
  int* ends = nullptr;            // counts its destructor, if set
  // What was called, of all exchanges that share the list: "post 0", "start 2".
  std::vector<std::string>* calls = nullptr;
  std::size_t number = 0;
  std::byte* memory = nullptr;   // of the buffers that it was given
  std::size_t memory_bytes = 0;  // of each of them
  std::uint64_t step = 0;

  ~FakeExchange() override {
    if (ends != nullptr) ++*ends;
  }
  void called(const char* what) const {
    if (calls != nullptr) calls->push_back(std::string(what) + " " + std::to_string(number));
  }

  [[nodiscard]] BufferNeeds needs() const override { return buffers; }
  void post_receives(BufferSet& set, std::uint64_t of_step) override {
    has_delivered = is_done = false;
    memory = set.at(0);
    memory_bytes = set.bytes();
    step = of_step;
    called("post");
  }
  void prepare() override { called("prepare"); }
  void start() override { called("start"); }
  bool progress() override { return std::exchange(moves, false); }
  [[nodiscard]] bool delivered() const override { return has_delivered; }
  [[nodiscard]] bool done() const override { return is_done; }
  [[nodiscard]] bool finite() const override { return true; }
  [[nodiscard]] bool stop_is_wished() const override { return false; }
  [[nodiscard]] bool waits_for_peer() const override { return waits; }
  void let_go() override { called("let go"); }
  void put_back_delivered() override { called("put back"); }

  // What it has cost so far.
  ExchangeStats& cost() { return stats_; }
};

}  // namespace dp::testing_support
