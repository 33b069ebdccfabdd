#include "comm/communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <thread>

#include "comm/check.hpp"

namespace dp {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(100);

MPI_Comm duplicate(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  DP_CHECK_MPI(MPI_Comm_dup(parent, &comm));
  DP_CHECK_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return comm;
}

}  // namespace

Communicator::Communicator(MPI_Comm parent) : comm_(duplicate(parent)), liveness_(comm_) {
  DP_CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
  DP_CHECK_MPI(MPI_Comm_size(comm_, &size_));
  struct Name {
    char text[MPI_MAX_PROCESSOR_NAME];
    PeerLinks::Addresses addresses;
  };
  Name name{.text = {}, .addresses = PeerLinks::mine()};
  int length = 0;
  DP_CHECK_MPI(MPI_Get_processor_name(name.text, &length));
  // wait() names hosts. Until they are known, messages have only the numbers of ranks.
  hosts_.assign(static_cast<std::size_t>(size_), "?");
  const auto names = all_gather(name);
  std::vector<PeerLinks::Addresses> addresses;
  for (std::size_t i = 0; i < names.size(); ++i) {
    hosts_[i] = names[i].text;
    addresses.push_back(names[i].addresses);
  }
  links_ = PeerLinks(hosts_, addresses);
  local_size_ = 0;
  for (int other = 0; other < size_; ++other) {
    if (hosts_[static_cast<std::size_t>(other)] != host()) continue;
    if (other < rank_) ++local_rank_;
    ++local_size_;
  }
}

Communicator::~Communicator() {
  // MPI_Comm_free is collective: while an exception unwinds, other ranks may never come to it.
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void Communicator::wait(MPI_Request& request, const char* what) {
  // Ranks that arrive together usually wait for a short time, so look often at first, then sleep.
  constexpr int kLooksBeforeSleep = 100;
  constexpr auto kSleep = std::chrono::microseconds(150);
  Deadline waiting = deadline();
  for (int looks = 0;; ++looks) {
    int is_done = 0;
    DP_CHECK_MPI(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE));
    if (is_done != 0) return waiting.moved();
    if (looks < kLooksBeforeSleep) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(kSleep);
    serve();
    waiting.check(whereabouts_, [&] {
      if (!activity_.empty()) return activity_;
      if (whereabouts_.step == 0) return std::string(what);
      return fmt::format("{} after step {}", what, whereabouts_.step);
    });
  }
}

Communicator::Beats::Beats(Communicator& owner) : owner_(owner) {
  if (owner.size_ == 1) return;
  owner_.whereabouts_.is_busy = 1;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "dp-beats");
    std::unique_lock lock(mutex_);
    try {
      while (!over_.wait_for(lock, kBeat, [&] { return is_over_; })) owner_.serve();
    } catch (const Error&) {
      // MPI fails: the owner's next call finds that out, and says so.
    }
  });
}

Communicator::Beats::~Beats() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
  owner_.whereabouts_.is_busy = 0;
}

void Communicator::count_broadcast(std::size_t bytes, int root) {
  if (rank_ == root) control_bytes_ += bytes * static_cast<std::size_t>(size_ - 1);
}

void Communicator::count_reduction(std::size_t bytes) {
  control_bytes_ +=
      bytes * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(size_ - 1)));
}

void Communicator::broadcast(std::string& text, int root) {
  auto bytes = static_cast<std::int64_t>(text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Ibcast(&bytes, 1, MPI_INT64_T, root, comm_, &request));
  wait(request, "a broadcast");
  text.resize(static_cast<std::size_t>(bytes));
  count_broadcast(sizeof(bytes) + text.size(), root);
  DP_CHECK_MPI(MPI_Ibcast(text.data(), checked_cast<int>(bytes), MPI_CHAR, root, comm_, &request));
  wait(request, "a broadcast");
}

std::vector<std::string> Communicator::gather(const std::string& text) {
  const auto bytes = all_gather(static_cast<std::int64_t>(text.size()));
  std::vector<int> counts, starts;
  std::int64_t total = 0;
  for (const std::int64_t n : bytes) {
    counts.push_back(checked_cast<int>(n));
    starts.push_back(checked_cast<int>(total));
    total += n;
  }
  std::string all(rank_ == 0 ? static_cast<std::size_t>(total) : 0, '\0');
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Igatherv(text.data(), checked_cast<int>(text.size()), MPI_CHAR, all.data(),
                            counts.data(), starts.data(), MPI_CHAR, 0, comm_, &request));
  wait(request, "a gathering of texts");
  control_bytes_ += gather_cost(text.size());
  std::vector<std::string> texts;
  if (rank_ != 0) return texts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(counts[i])));
  }
  return texts;
}

void Communicator::gather_bytes(std::span<const std::byte> mine, void* all) {
  const int count = checked_cast<int>(mine.size());
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Igather(mine.data(), count, MPI_BYTE, all, count, MPI_BYTE, 0, comm_, &request));
  wait(request, "a gathering of rows");
  control_bytes_ += gather_cost(mine.size());
}

void Communicator::all_gather_bytes(std::span<const std::byte> mine, void* all) {
  const int count = checked_cast<int>(mine.size());
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Iallgather(mine.data(), count, MPI_BYTE, all, count, MPI_BYTE, comm_, &request));
  wait(request, "a gathering on all ranks");
  control_bytes_ += mine.size() * static_cast<std::size_t>(size_ - 1);
}

void Communicator::all_to_all_bytes(std::span<const std::byte> mine,
                                    std::span<const std::size_t> first_of_rank, std::size_t size,
                                    std::span<std::byte> all) {
  const auto ranks = static_cast<std::size_t>(size_);
  for (Parts* parts : {&sent_parts_, &received_parts_}) {
    parts->sizes.resize(ranks);
    parts->begins.resize(ranks);
  }
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t own = (first_of_rank[me + 1] - first_of_rank[me]) * size;
  DP_ASSERT(all.size() == ranks * own, "{} bytes for {} of {}", all.size(), ranks, own);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t bytes = (first_of_rank[r + 1] - first_of_rank[r]) * size;
    sent_parts_.sizes[r] = checked_cast<int>(bytes);
    sent_parts_.begins[r] = checked_cast<int>(first_of_rank[r] * size);
    received_parts_.sizes[r] = checked_cast<int>(own);
    received_parts_.begins[r] = checked_cast<int>(r * own);
    if (r != me) control_bytes_ += bytes;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Ialltoallv(mine.data(), sent_parts_.sizes.data(), sent_parts_.begins.data(),
                              MPI_BYTE, all.data(), received_parts_.sizes.data(),
                              received_parts_.begins.data(), MPI_BYTE, comm_, &request));
  wait(request, "a distribution over all ranks");
}

void Communicator::all_sum(std::span<std::int64_t> values) {
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Iallreduce(MPI_IN_PLACE, values.data(), checked_cast<int>(values.size()),
                              MPI_INT64_T, MPI_SUM, comm_, &request));
  wait(request, "a sum over ranks");
  count_reduction(values.size_bytes());
}

// Gathers kPart values of each rank at a time, adds them as doubles in the order of ranks, and
// keeps result_of(sum).
template <class T, class ResultOf>
void Communicator::add_in_parts(std::span<T> values, ResultOf result_of) {
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<T> all(std::min(values.size(), kPart) * ranks);
  for (std::size_t begin = 0; begin < values.size(); begin += kPart) {
    const std::span<T> part = values.subspan(begin, std::min(kPart, values.size() - begin));
    all_gather_bytes(std::as_bytes(part), all.data());
    for (std::size_t i = 0; i < part.size(); ++i) {
      double sum = 0.0;
      for (std::size_t r = 0; r < ranks; ++r) sum += static_cast<double>(all[r * part.size() + i]);
      part[i] = result_of(sum);
    }
  }
}

void Communicator::all_sum(std::span<double> values) {
  add_in_parts(values, [](double sum) { return sum; });
}

void Communicator::all_mean(std::span<float> values) {
  add_in_parts(values, [this](double sum) { return static_cast<float>(sum / size_); });
}

std::int64_t Communicator::all_sum(std::int64_t value) {
  all_sum(std::span(&value, 1));
  return value;
}

double Communicator::all_sum(double value) {
  all_sum(std::span(&value, 1));
  return value;
}

void Communicator::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Ibarrier(comm_, &request));
  wait(request, "a barrier");
}

void Communicator::agree(bool is_ok, const std::string& message, ErrorKind kind) {
  const int mine = is_ok ? size_ : rank_;
  int failing = size_;
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Iallreduce(&mine, &failing, 1, MPI_INT, MPI_MIN, comm_, &request));
  wait(request, "an agreement");
  count_reduction(sizeof(mine));
  if (failing == size_) return;
  auto code = static_cast<int>(kind);
  DP_CHECK_MPI(MPI_Ibcast(&code, 1, MPI_INT, failing, comm_, &request));
  wait(request, "an agreement");
  std::string text = message;
  broadcast(text, failing);
  throw AgreedError(static_cast<ErrorKind>(code), text);
}

}  // namespace dp
