#include "app/planning/rehearsal.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "kernels/base/error.hpp"
#include "kernels/base/state.hpp"

namespace dp {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keeps a copy of a replica's state, and puts it back at the end.
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
    try {
      bring_back();
    } catch (const Error&) {
      // A failure of the GPU is not reported here, because the next wait for the GPU throws.
    }
  }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

 private:
  void bring_back() {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const StateBlock& block = list_.blocks[i];
      if (block.place == StatePlace::device) {
        device_.upload(block.bytes.data(), copies_[i].data(), copies_[i].size());
      } else if (!copies_[i].empty()) {
        std::memcpy(block.bytes.data(), copies_[i].data(), copies_[i].size());
      }
    }
  }

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

// begin_s: when the ranks began the step together. The caller reads the clock right after the ranks
// have met in a collective call. Reading it here would be less exact, because ranks that share
// cores may get a core late.
RehearsedStep rehearse_step(Replica& replica, const RehearsalOptions& options, TimeMarks& marks,
                            std::uint64_t step, double begin_s) {
  using Marks = Replica::RehearsalMarks;
  RehearsedStep times;
  double before_s = 0.0;  // the waits for batches, and the parts before the last one
  for (std::size_t part = 0; part < options.parts; ++part) {
    const Batch& batch = options.next();
    replica.prepare(batch.samples, net::Mode::training);
    replica.load(batch);
    before_s = now_s() - begin_s;
    replica.rehearse(marks, step);
    replica.await_loaded();
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

std::vector<std::vector<RehearsedStep>> rehearse_steps(Replica& replica,
                                                       const RehearsalOptions& options) {
  const std::size_t tensors = replica.network().parameters().tensors().size();
  const auto marks =
      replica.device().make_time_marks(Replica::RehearsalMarks::kFirstTensor + tensors);
  const KeptState kept(replica);
  std::vector<std::vector<RehearsedStep>> all;
  const double first_s = now_s();
  double begin_s = first_s;
  for (std::size_t step = 0; step <= options.steps; ++step) {
    const std::vector<double> mine =
        numbers_of(rehearse_step(replica, options, *marks, step, begin_s));
    std::vector<double> theirs;
    const bool is_late = replica.sync().reducer().run([&](Communicator& comm) {
      theirs.resize(static_cast<std::size_t>(comm.size()) * mine.size());
      comm.all_gather(std::span<const double>(mine), std::span<double>(theirs));
      const int late = now_s() - first_s > options.seconds ? 1 : 0;
      const bool is_rank_0_late = comm.all_gather(late).front() != 0;
      begin_s = now_s();
      return is_rank_0_late;
    });
    if (step == 0) continue;
    std::vector<RehearsedStep>& ranks = all.emplace_back();
    for (std::size_t at = 0; at < theirs.size(); at += mine.size()) {
      ranks.push_back(step_of(std::span(theirs).subspan(at, mine.size())));
    }
    if (is_late) break;
  }
  replica.end_rehearsals();
  return all;
}

std::vector<std::vector<RehearsedStep>> rehearse_steps(Replica& replica, Loader& loader,
                                                       RehearsalOptions options) {
  const std::size_t parts = loader.parts();
  const std::size_t whole_steps = std::max<std::size_t>(loader.steps(), 2) - 1;
  std::size_t taken = 0;
  options.parts = parts;
  options.next = [&]() -> const Batch& {
    const std::size_t in_epoch = taken % (whole_steps * parts);
    if (in_epoch == 0) loader.start_epoch(taken / (whole_steps * parts));
    ++taken;
    return loader.next();
  };
  return rehearse_steps(replica, options);
}

}  // namespace dp
