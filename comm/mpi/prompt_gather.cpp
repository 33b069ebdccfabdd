#include "comm/mpi/prompt_gather.hpp"

#include <algorithm>
#include <cstring>

#include "comm/mpi/tags.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::uint32_t kGatherKind = 0x44500003u;

struct GatherHeader {
  std::uint32_t kind = 0, number = 0, pass = 0, floats = 0;
};
static_assert(sizeof(GatherHeader) == 16);

}  // namespace

// ---- the desk -----------------------------------------------------------------------------------

void GatherDesk::gather(Pass pass, std::span<const float> mine, std::span<float> all) {
  const TraceSlice slice(trace_, TraceKind::gather_wait);
  const auto began = TraceClock::now();
  std::unique_lock lock(mutex_);
  const auto throw_closed = [&] {
    if (why_closed_) std::rethrow_exception(why_closed_);
    throw_error(ErrorKind::communication, "the exchange between ranks has ended");
  };
  if (!is_open_) throw_closed();
  request_ = {pass, mine, all};
  has_request_.store(true, std::memory_order_release);
  wake_();
  ended_.wait(lock, [&] { return !has_request() || !is_open_; });
  if (has_request_.exchange(false)) throw_closed();
  const double waited_s = std::chrono::duration<double>(TraceClock::now() - began).count();
  (pass == Pass::forward ? waits_.forward_s : waits_.backward_s) += waited_s;
}

bool GatherDesk::is_served() {
  const std::lock_guard lock(mutex_);
  return is_open_;
}

GatherDesk::Waits GatherDesk::take_waits() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waits_, {});
}

void GatherDesk::open(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  why_closed_ = nullptr;
  wake_ = std::move(wake);
}

void GatherDesk::served() {
  const std::lock_guard lock(mutex_);
  has_request_.store(false, std::memory_order_release);
  ended_.notify_one();
}

void GatherDesk::close(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  is_open_ = false;
  why_closed_ = std::move(why);
  wake_ = nullptr;
  ended_.notify_all();
}

// ---- the reducer's side -------------------------------------------------------------------------

PromptGather::PromptGather(Transport& transport, GatherDesk& desk, TraceTrack* trace)
    : transport_(transport),
      desk_(desk),
      trace_(trace),
      rank_(transport.rank()),
      ranks_(static_cast<std::size_t>(transport.size())),
      message_bytes_(bytes_of(desk.most_floats())),
      memory_(new std::byte[message_bytes_ * (others() + 2)]),
      received_bytes_(others()) {
  DP_ASSERT(desk.ranks() == ranks_, "the gather desk is for {} ranks, but there are {}",
            desk.ranks(), ranks_);
  channel_ = transport.open(3 * others());
}

PromptGather::~PromptGather() {
  if (!is_under_way_ && sends_under_way_[0] + sends_under_way_[1] == 0) return;
  static auto& kept = *new std::vector<std::shared_ptr<std::byte[]>>;
  kept.push_back(memory_);
}

std::byte* PromptGather::received(std::size_t i) const {
  return memory_.get() + message_bytes_ * i;
}
std::byte* PromptGather::sent(std::size_t parity) const {
  return memory_.get() + message_bytes_ * (others() + parity);
}

bool PromptGather::look() {
  bool has_moved = take_note_of_ended();
  if (has_work() && sends_under_way_[number_ % 2] == 0) {
    start();
    has_moved = true;
  }
  if (is_under_way_ && arrived_ == others()) {
    finish();
    has_moved = true;
  }
  return has_moved;
}

// The channel's slots are one receive from each other rank, then two sets of sends.
bool PromptGather::take_note_of_ended() {
  const std::span<const Completion> ended = channel_->poll();
  for (const Completion& transfer : ended) {
    if (transfer.slot < others()) {
      received_bytes_[transfer.slot] = transfer.bytes;
      ++arrived_;
    } else {
      --sends_under_way_[transfer.slot / others() - 1];
    }
  }
  return !ended.empty();
}

void PromptGather::start() {
  const GatherDesk::Request& request = desk_.request();
  const std::span<const float> mine = request.mine;
  DP_ASSERT(mine.size() <= desk_.most_floats() && request.all.size() == mine.size() * ranks_,
            "this rank gives {} floats ({} were planned), and the result has {}", mine.size(),
            desk_.most_floats(), request.all.size());
  began_ = Clock::now();
  is_under_way_ = true;
  arrived_ = 0;
  const std::size_t parity = number_ % 2, bytes = bytes_of(mine.size());
  const GatherHeader header = {kGatherKind, number_, request.pass == Pass::forward ? 0u : 1u,
                               checked_cast<std::uint32_t>(mine.size())};
  std::memcpy(sent(parity), &header, sizeof header);
  std::memcpy(sent(parity) + kHeaderBytes, mine.data(), mine.size_bytes());
  seal({sent(parity), bytes});
  for (std::size_t i = 0; i < others(); ++i) {
    channel_->receive(i, {received(i), message_bytes_}, other(i), kGatherTag);
  }
  for (std::size_t i = 0; i < others(); ++i) {
    channel_->send(others() * (1 + parity) + i, {sent(parity), bytes}, other(i), kGatherTag);
    ++sends_under_way_[parity];
    cost_.sent_bytes += bytes;
  }
  std::copy(mine.begin(), mine.end(),
            request.all.begin() +
                static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank_) * mine.size()));
}

void PromptGather::finish() {
  const GatherDesk::Request& request = desk_.request();
  const std::size_t floats = request.mine.size();
  for (std::size_t i = 0; i < others(); ++i) {
    check(i);
    std::memcpy(request.all.data() + static_cast<std::size_t>(other(i)) * floats,
                received(i) + kHeaderBytes, floats * sizeof(float));
  }
  is_under_way_ = false;
  ++number_;
  ++cost_.gatherings;
  const Clock::time_point now = Clock::now();
  cost_.gather_s += std::chrono::duration<double>(now - began_).count();
  if (trace_ != nullptr) {
    trace_->add({.begin_ns = trace_ns(began_),
                 .end_ns = trace_ns(now),
                 .bytes = others() * bytes_of(floats),
                 .step = trace_->step(),
                 .kind = TraceKind::gather});
  }
  desk_.served();
}

// Throws an error if the message of the i-th other rank does not belong to this gathering.
void PromptGather::check(std::size_t i) const {
  const std::size_t floats = desk_.request().mine.size();
  const std::uint32_t pass = desk_.request().pass == Pass::forward ? 0 : 1;
  transport_.check_seal({received(i), received_bytes_[i]}, other(i), [&] { return describe(); });
  GatherHeader header;
  std::memcpy(&header, received(i), sizeof header);
  if (received_bytes_[i] == bytes_of(floats) && header.kind == kGatherKind &&
      header.number == number_ && header.pass == pass && header.floats == floats) {
    return;
  }
  throw_error(ErrorKind::communication,
              "rank {} sent {} bytes with the header {:08x} {} {} {} instead of gathering {} with "
              "{} floats: its program differs from this rank's",
              other(i), received_bytes_[i], header.kind, header.number, header.pass, header.floats,
              number_, floats);
}

double PromptGather::waited_s() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

std::string PromptGather::describe() const {
  return fmt::format("gathering {} of all ranks' statistics (batch normalisation)", number_);
}

}  // namespace dp
