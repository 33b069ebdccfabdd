#include "app/output/run_trace.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "app/process/option_names.hpp"
#include "comm/reducer/trace_slices.hpp"
#include "io/files/text_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Slices of the reducer's thread: enough for 1,000 steps of a small network, or for some tens of
// steps of a large network on many ranks. They take 46 MB, but only pages in use are touched.
constexpr std::size_t kMostExchangeSlices = 1u << 20;

}  // namespace

// Rank 0's file; empty on the other ranks. After a write error it keeps the message and ignores
// further slices. The ranks still gather all slices, because only rank 0 knows of the error.
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
  // Each part of a step has the slices forward, loss and backward, and for each layer two slices
  // and two waits for other ranks. The step itself, data, exposed communication and the optimiser
  // add four more.
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
    codecs.specs.push_back(bucket.codec.text());
  }
  codecs_.push_back(std::move(codecs));
}

RunTrace::Report RunTrace::write(Reducer& reducer) {
  return reducer.run([this](Communicator& communicator) {
    if (!std::exchange(is_on_one_clock_, true)) {
      clock_error_ns_ = put_on_one_clock(communicator, first_reading_, {&loop_, &exchange_});
    }
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
      slices +=
          gather_slices(communicator, track->events(),
                        [&target](std::size_t rank, auto events) { target.append(rank, events); });
    }
    target.close();
    is_written_ = communicator.all_gather(std::uint8_t{target.failure().empty()}).front() != 0;
    if (communicator.rank() != 0 || !target.failure().empty()) return Report{{}, target.failure()};
    const std::string clocks =
        communicator.size() > 1 ? ", and the ranks' clocks agree within " + format_seconds(error_s)
                                : "";
    std::string text = fmt::format("The trace is {}: {} slices{}", options_.trace,
                                   format_count(static_cast<std::int64_t>(slices)), clocks);
    if (left_out > 0) {
      text += fmt::format("; {} slices of one rank did not fit into memory: trace fewer steps",
                          format_count(static_cast<std::int64_t>(left_out)));
    }
    return Report{std::move(text), {}};
  });
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
