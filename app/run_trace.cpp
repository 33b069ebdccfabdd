#include "app/run_trace.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "app/option_names.hpp"
#include "io/text_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Slices of the reducer's thread: 1,000 steps of a small network, or some tens of a large one on
// many ranks. They take 46 MB, of which only used pages are touched.
constexpr std::size_t kMostExchangeSlices = 1u << 20;
constexpr std::size_t kChunk = 4096;  // slices of each rank that are gathered at once

}  // namespace

// Rank 0's file; empty on the other ranks. It keeps the first failure to write and drops what comes
// later, because all ranks gather to the end even if the file fails.
class RunTrace::Target {
 public:
  template <class Work>
  void attempt(Work work) {
    try {
      with_option_names(kDptrainNames, [&] { work(file_); });
    } catch (const Error& error) {
      failure_ = error.what();
      file_.reset();
    }
  }
  void append(std::size_t rank, std::span<const TraceEvent> events) {
    if (file_) attempt([&](auto& file) { file->append(rank, events); });
  }
  void close() {
    if (file_) attempt([](auto& file) { file->close(); });
  }
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  std::unique_ptr<TraceFile> file_;
  std::string failure_;
};

RunTrace::RunTrace(const Options& options) : options_(options) {}

void RunTrace::start(const net::Network& network, std::uint64_t step, std::size_t parts) {
  layers_ = network.layer_names();
  const auto steps = static_cast<std::uint64_t>(options_.trace_steps);
  begin_ = step + static_cast<std::uint64_t>(options_.trace_first);
  end_ = begin_ + steps;
  // Each layer and its wait for other ranks twice, forward, loss and backward: in each part of a
  // step; and the step, data, exposed communication and the optimiser.
  loop_.reserve(steps * (parts * (4 * layers_.size() + 3) + 4));
  exchange_.reserve(kMostExchangeSlices);
  loop_.set_window(begin_, steps);
  exchange_.set_window(begin_, steps);
}

void RunTrace::begin_epoch(Reducer& reducer, std::uint64_t step, std::uint64_t steps) {
  if (step >= end_ || step + steps <= begin_) return;
  if (begin_ >= step) {
    first_reading_ = reducer.run(
        [](Communicator& communicator) { return read_clock_offset(communicator, trace_clock_ns); });
  }
  bucket_elements_.clear();
  TraceInfo::Codecs codecs = {.first_step = step, .specs = {}};
  for (const Bucket& bucket : reducer.buckets()) {
    bucket_elements_.push_back(bucket.elements);
    codecs.specs.push_back(bucket.codec);
  }
  codecs_.push_back(std::move(codecs));
}

RunTrace::Report RunTrace::write(Reducer& reducer) {
  return reducer.run([this](Communicator& communicator) {
    if (!std::exchange(is_on_one_clock_, true)) put_on_one_clock(communicator);
    TraceInfo info = describe(communicator);
    info.clock_errors_ns = communicator.all_gather(clock_error_ns_);
    info.left_out = communicator.all_gather(std::uint64_t{loop_.left_out()} + exchange_.left_out());
    const double error_s = 1e-9 * static_cast<double>(std::ranges::max(info.clock_errors_ns));
    const std::uint64_t left_out = std::ranges::max(info.left_out);

    Target target;
    if (communicator.rank() == 0) {
      target.attempt([&](std::unique_ptr<TraceFile>& file) {
        file = std::make_unique<TraceFile>(options_.trace, std::move(info));
      });
    }
    std::size_t slices = 0;
    for (TraceTrack* track : {&loop_, &exchange_}) {
      slices += gather(communicator, track->events(), target);
    }
    target.close();
    is_written_ = communicator.all_gather(std::uint8_t{target.failure().empty()}).front() != 0;
    if (communicator.rank() != 0 || !target.failure().empty()) return Report{{}, target.failure()};
    const std::string clocks =
        communicator.size() > 1 ? ", on clocks that agree within " + format_seconds(error_s) : "";
    std::string text = fmt::format("The trace is {}: {} slices{}", options_.trace,
                                   format_count(static_cast<std::int64_t>(slices)), clocks);
    if (left_out > 0) {
      text += fmt::format("; {} slices of one rank did not fit into memory: trace fewer steps",
                          format_count(static_cast<std::int64_t>(left_out)));
    }
    return Report{std::move(text), {}};
  });
}

// Converts times to rank 0's clock, counted from the trace's zero, and sorts slices as the file
// needs them.
void RunTrace::put_on_one_clock(Communicator& communicator) {
  const ClockReading last_reading = read_clock_offset(communicator, trace_clock_ns);
  const ClockLine line(first_reading_, last_reading);
  const std::int64_t zero_ns = communicator.all_gather(first_reading_.at_ns).front();
  clock_error_ns_ = std::max(first_reading_.error_ns, last_reading.error_ns);
  for (TraceTrack* track : {&loop_, &exchange_}) {
    for (TraceEvent& event : track->events()) {
      event.begin_ns = line.to_rank_0(event.begin_ns) - zero_ns;
      event.end_ns = line.to_rank_0(event.end_ns) - zero_ns;
    }
    std::ranges::sort(track->events(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
  }
}

// Sends chunk after chunk to rank 0, which alone has a file. Returns how many slices rank 0 got.
std::size_t RunTrace::gather(Communicator& communicator, std::span<const TraceEvent> mine,
                             Target& target) {
  const std::vector<std::size_t> counts = communicator.all_gather(mine.size());
  std::vector<TraceEvent> chunk(kChunk);
  std::size_t gathered = 0;
  for (std::size_t begin = 0; begin < std::ranges::max(counts); begin += kChunk) {
    const auto count_of = [&](std::size_t all) {
      return std::min(all - std::min(all, begin), kChunk);
    };
    if (begin < mine.size())
      std::ranges::copy(mine.subspan(begin, count_of(mine.size())), chunk.begin());
    const std::vector<TraceEvent> rows =
        communicator.gather_rows(std::span<const TraceEvent>(chunk));
    if (communicator.rank() != 0) continue;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const auto its = std::span(rows).subspan(rank * kChunk, count_of(counts[rank]));
      target.append(rank, its);
      gathered += its.size();
      communicator.serve();
    }
  }
  return gathered;
}

TraceInfo RunTrace::describe(const Communicator& communicator) const {
  TraceInfo info;
  info.about.emplace_back("program", "dptrain " DP_VERSION);
  for (const auto& [name, value] : options_.resolved()) {
    const bool is_told = name == "model" || name == "dataset" || name == "compress" ||
                         name == "topology" || name == "device" || name == "trace-steps";
    if (is_told) info.about.emplace_back(name, value);
  }
  info.hosts = communicator.hosts();
  info.layers = layers_;
  info.bucket_elements = bucket_elements_;
  info.has_gatherings = options_.sync_bn;
  info.codecs = codecs_;
  return info;
}

}  // namespace dp
