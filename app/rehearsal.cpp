#include "app/rehearsal.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/base/state.hpp"

namespace dp {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The state of a replica, which it gets back at the end.
class KeptState {
 public:
  explicit KeptState(Replica& replica) : device_(replica.device()) {
    replica.list_state(list_);
    for (const StateBlock& block : list_.blocks) {
      std::vector<std::byte>& copy = copies_.emplace_back(block.bytes.size());
      if (block.place == StatePlace::device) {
        device_.download(copy.data(), block.bytes.data(), copy.size());
      } else if (!copy.empty()) {
        std::memcpy(copy.data(), block.bytes.data(), copy.size());
      }
    }
  }
  ~KeptState() {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const StateBlock& block = list_.blocks[i];
      if (block.place == StatePlace::device) {
        device_.upload(block.bytes.data(), copies_[i].data(), copies_[i].size());
      } else if (!copies_[i].empty()) {
        std::memcpy(block.bytes.data(), copies_[i].data(), copies_[i].size());
      }
    }
  }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

 private:
  Device& device_;
  StateList list_;
  std::vector<std::vector<std::byte>> copies_;
};

// A step of this rank as numbers, for all_gather.
std::vector<double> numbers_of(const RehearsedStep& step) {
  std::vector<double> numbers = step.ready_s;
  numbers.insert(numbers.end(), {step.backward_end_s, step.update_s});
  return numbers;
}

RehearsedStep step_of(std::span<const double> numbers) {
  const std::size_t tensors = numbers.size() - 2;
  return {.ready_s = {numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(tensors)},
          .backward_end_s = numbers[tensors],
          .update_s = numbers[tensors + 1]};
}

RehearsedStep rehearse_step(Run& run, TimeMarks& marks, std::uint64_t step) {
  using Marks = Replica::RehearsalMarks;
  Replica& replica = *run.replica;
  RehearsedStep times;
  double before_s = 0.0;  // waits for the batch, and the parts before the last one
  const std::size_t parts = run.train_loader->parts();
  for (std::size_t part = 0; part < parts; ++part) {
    const double begin_s = now_s();
    replica.load(run.train_loader->next());
    before_s += now_s() - begin_s;
    replica.rehearse(marks, step);
    replica.await_loaded();
    if (part + 1 < parts) before_s += marks.seconds(Marks::kBegin, Marks::kBackwardEnd);
  }
  for (std::size_t t = 0; t < replica.network().parameters().tensors().size(); ++t) {
    times.ready_s.push_back(before_s + marks.seconds(Marks::kBegin, Marks::kFirstTensor + t));
  }
  times.backward_end_s = before_s + marks.seconds(Marks::kBegin, Marks::kBackwardEnd);
  const double update_begin_s = now_s();
  replica.rehearse_update();
  times.update_s = now_s() - update_begin_s;
  return times;
}

}  // namespace

std::vector<std::vector<RehearsedStep>> rehearse_steps(Run& run, const RehearsalLimits& limits) {
  Replica& replica = *run.replica;
  Reducer& reducer = replica.sync().reducer();
  const auto ranks = static_cast<std::size_t>(run.comm.size());
  const std::size_t tensors = replica.network().parameters().tensors().size();
  const auto marks =
      replica.device().make_time_marks(Replica::RehearsalMarks::kFirstTensor + tensors);
  const KeptState kept(replica);
  run.train_loader->start_epoch(0);
  std::vector<std::vector<RehearsedStep>> all;
  const double begin_s = now_s();
  // The last step of an epoch is a smaller one.
  const std::size_t steps_of_epoch =
      std::max<std::size_t>(1, run.train_loader->steps() - (run.train_loader->steps() > 1 ? 1 : 0));
  for (std::size_t step = 0; step <= limits.steps; ++step) {
    if (step > 0 && step % steps_of_epoch == 0) run.train_loader->start_epoch(step);
    const std::vector<double> mine = numbers_of(rehearse_step(run, *marks, step));
    std::vector<double> theirs(ranks * mine.size());
    const bool is_late = reducer.run([&](Communicator& comm) {
      comm.all_gather(std::span<const double>(mine), std::span<double>(theirs));
      return comm.all_gather(now_s() - begin_s > limits.seconds ? 1 : 0).front() != 0;
    });
    if (step > 0) {
      std::vector<RehearsedStep>& ranks_steps = all.emplace_back();
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        ranks_steps.push_back(step_of(std::span(theirs).subspan(rank * mine.size(), mine.size())));
      }
      if (is_late) break;
    }
  }
  replica.end_rehearsals();
  return all;
}

}  // namespace dp
