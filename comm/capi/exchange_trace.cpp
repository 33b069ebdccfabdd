#include "comm/capi/exchange_trace.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "comm/capi/arguments.hpp"
#include "comm/reducer/trace_slices.hpp"
#include "io/files/new_file.hpp"
#include "io/files/trace_file.hpp"
#include "kernels/base/error.hpp"

namespace dp::capi {
namespace {

constexpr std::size_t kMostExchangeSlices = 1u << 20;  // 46 MB; only used pages are touched

// Runs f on rank 0. If f throws an exception, all ranks throw it.
template <class F>
void on_rank_0(Communicator& comm, F f) {
  std::string failure;
  if (comm.rank() == 0) {
    try {
      f();
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  comm.broadcast(failure);
  if (!failure.empty()) throw_error(ErrorKind::data, "{}", failure);
}

}  // namespace

ExchangeTrace::ExchangeTrace(const dptrain_comm_options& given, std::span<const TensorSlot> tensors,
                             Communicator& comm)
    : path_(given.trace),
      compress_(given.compress),
      first_(given.trace_first),
      steps_(given.trace_steps) {
  on_rank_0(comm, [this] { check_new_file(Setting{"trace"}, path_); });
  for (const TensorSlot& tensor : tensors) {
    names_.push_back(tensor.name.empty() ? fmt::format("slot {}", names_.size()) : tensor.name);
  }
  loop_.reserve(steps_ * (tensors.size() + 3));
  exchange_.reserve(kMostExchangeSlices);
  first_reading_ = read_clock_offset(comm, trace_clock_ns);
}

void ExchangeTrace::step_begins(std::uint64_t step) {
  // Loading a state changes the number of the first step, so the window is set only now.
  if (!std::exchange(has_window_, true)) {
    loop_.set_window(step + first_, steps_);
    exchange_.set_window(step + first_, steps_);
  }
  loop_.begin_step(step);
  step_began_ns_ = last_ready_ns_ = trace_clock_ns();
}

void ExchangeTrace::tensor_ready(std::size_t tensor) {
  if (!loop_.is_on()) return;
  const std::int64_t now_ns = trace_clock_ns();
  add(TraceKind::layer_backward, std::exchange(last_ready_ns_, now_ns), now_ns, tensor);
}

void ExchangeTrace::backward_ends() {
  backward_ended_ns_ = trace_clock_ns();
  add(TraceKind::backward, step_began_ns_, backward_ended_ns_);
}

void ExchangeTrace::step_ends() {
  const std::int64_t now_ns = trace_clock_ns();
  add(TraceKind::exposed_comm, backward_ended_ns_, now_ns);
  add(TraceKind::step, step_began_ns_, now_ns);
}

void ExchangeTrace::add(TraceKind kind, std::int64_t begin_ns, std::int64_t end_ns,
                        std::size_t id) {
  loop_.add({.begin_ns = begin_ns,
             .end_ns = end_ns,
             .step = loop_.step(),
             .id = static_cast<std::uint32_t>(id),
             .kind = kind});
}

void ExchangeTrace::write(Reducer& reducer) {
  if (is_written_) return;
  TraceInfo info;
  info.about = {{"program", "dptrain_comm " DPTRAIN_COMM_VERSION}, {"compress", compress_}};
  info.layers = names_;
  info.codecs.emplace_back();
  for (const Bucket& bucket : reducer.buckets()) {
    info.bucket_elements.push_back(bucket.elements);
    info.codecs.front().specs.push_back(bucket.codec.text());
  }
  // An exception on the reducer's thread would end the exchange, so this function returns the
  // exception's message instead.
  const std::string failure = reducer.run([&](Communicator& comm) {
    if (!std::exchange(is_on_one_clock_, true)) {
      clock_error_ns_ = put_on_one_clock(comm, first_reading_, {&loop_, &exchange_});
    }
    info.hosts = comm.hosts();
    info.clock_errors_ns = comm.all_gather(clock_error_ns_);
    info.left_out = comm.all_gather(std::uint64_t{loop_.left_out()} + exchange_.left_out());
    std::unique_ptr<TraceFile> file;
    std::string first_failure;
    const auto attempt = [&](auto work) {
      if (comm.rank() != 0 || !first_failure.empty()) return;
      try {
        work();
      } catch (const Error& error) {
        first_failure = error.what();
        file.reset();
      }
    };
    attempt([&] { file = std::make_unique<TraceFile>(path_, std::move(info)); });
    for (TraceTrack* track : {&loop_, &exchange_}) {
      gather_slices(comm, track->events(), [&](std::size_t rank, auto events) {
        attempt([&] { file->append(rank, events); });
      });
    }
    attempt([&] { file->close(); });
    comm.broadcast(first_failure);
    return first_failure;
  });
  if (!failure.empty()) throw_error(ErrorKind::data, "{}", failure);
  is_written_ = true;
}

}  // namespace dp::capi
