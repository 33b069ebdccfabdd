// The rate notes of one exchange on one rank: reads them from messages, writes them into messages,
// and adds up the bytes that all ranks have sent in the step according to the notes
// (rate_control.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"
#include "comm/rate/rate_control.hpp"

namespace dp {

class RateNotes {
 public:
  // If `order` is null, messages have no notes. Both arguments outlive this object.
  RateNotes(const RateOrder* order, const ExchangePlan& plan) : order_(order), plan_(plan) {
    if (order != nullptr) notes_.resize(plan.segments.size());
  }

  // The size of the note in every message.
  [[nodiscard]] std::size_t bytes() const { return order_ == nullptr ? 0 : sizeof(RateNote); }
  [[nodiscard]] const RateTally& tally() const { return tally_; }

  void begin_step() {
    tally_ = {};
    std::ranges::fill(notes_, RateNote{});
  }

  // Call it when the task's message has arrived.
  void take(const PlanTask& task, const std::byte* from, std::size_t payload_bytes) {
    if (order_ == nullptr) return;
    RateNote note;
    std::memcpy(&note, from, sizeof note);
    if (task.take == PlanTask::Take::total) {
      count_total(task, note, payload_bytes);
    } else {
      add(notes_[task.segment], note);
    }
  }

  // Call it when the task's message has been encoded.
  void write(const PlanTask& task, std::byte* to, std::size_t payload_bytes) {
    if (order_ == nullptr) return;
    RateNote& note = notes_[task.segment];
    RateNote mine;
    write(order_->word, mine);
    if (task.give != PlanTask::Give::total) {
      mine.partial_bytes = static_cast<std::uint32_t>(payload_bytes);
      ++mine.partials;
    }
    add(note, mine);
    if (task.give == PlanTask::Give::total) count_total(task, note, payload_bytes);
    std::memcpy(to, &note, sizeof note);
  }

 private:
  [[nodiscard]] RateWord word_of(const RateNote& note) const {
    return {.kind = order_->word.kind,
            .code = note.word,
            .has_alarm = (note.partials & RateNote::kAlarm) != 0};
  }
  static void write(const RateWord& word, RateNote& note) {
    note.word = word.code;
    if (word.has_alarm) note.partials |= RateNote::kAlarm;
  }

  void add(RateNote& sum, const RateNote& more) const {
    RateWord word{.kind = order_->word.kind};
    word.meet(word_of(sum));
    word.meet(word_of(more));
    sum.partial_bytes += more.partial_bytes;
    sum.partials = static_cast<std::uint16_t>((sum.partials + more.partials) & ~RateNote::kAlarm);
    write(word, sum);
  }

  void count_total(const PlanTask& task, const RateNote& note, std::size_t payload_bytes) {
    const std::size_t size = plan_.segments[task.segment].size;
    const std::size_t partials = note.partials & ~RateNote::kAlarm;
    RateWord word{.kind = order_->word.kind};
    word.meet(word_of(note));
    tally_ += {.sites = {{{.bytes = note.partial_bytes, .values = partials * size},
                          {.bytes = payload_bytes, .values = size}}},
               .word = word,
               .own_squares = {}};
  }

  const RateOrder* order_;
  const ExchangePlan& plan_;
  std::vector<RateNote> notes_;  // by segment: of partial sums
  RateTally tally_;
};

}  // namespace dp
