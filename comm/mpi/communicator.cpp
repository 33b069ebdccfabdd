// Outline: every collective starts non-blocking MPI calls and passes their requests to wait(),
// which polls, answers pings and enforces the deadline. Most collectives send the data in one MPI
// call and the checksums in another, at the same time; check_part() compares the two. Sums and
// agree() are all_gather() plus local work.
#include "comm/mpi/communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "comm/mpi/mpi_check.hpp"

namespace dp {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(100);

MPI_Comm duplicate(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  DP_CHECK_MPI(MPI_Comm_dup(parent, &comm));
  DP_CHECK_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return comm;
}

// The header that is sent before a text.
struct TextHead {
  std::int64_t bytes = 0;
  std::uint32_t checksum = 0, unused = 0;
};

TextHead head_of(const std::string& text) {
  return {.bytes = static_cast<std::int64_t>(text.size()),
          .checksum = crc32c(std::as_bytes(std::span(text)))};
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
  sent_checksums_.resize(static_cast<std::size_t>(size_));
  received_checksums_.resize(static_cast<std::size_t>(size_));
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
  // MPI_Comm_free is collective: while an exception unwinds, other ranks may never reach it.
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
      // MPI has failed: the owner's next call will report it.
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

void Communicator::throw_damaged(std::string_view what, int from) const {
  dp::throw_damaged(what, {.rank = from, .host = hosts_[static_cast<std::size_t>(from)]},
                    {.rank = rank_, .host = host()});
}

// Checks the part that rank `from` sent against its checksum.
void Communicator::check_part(std::span<const std::byte> part, int from, const char* what) const {
  if (from == rank_) return;
  if (crc32c(part) != received_checksums_[static_cast<std::size_t>(from)])
    throw_damaged(what, from);
}

void Communicator::broadcast(std::string& text, int root) {
  constexpr const char* kWhat = "a broadcast";
  Sealed<TextHead> head(head_of(text));
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(
      MPI_Ibcast(head.data(), static_cast<int>(head.kBytes), MPI_BYTE, root, comm_, &request));
  wait(request, kWhat);
  if (!head.is_intact()) throw_damaged(kWhat, root);
  const TextHead got = head.value();
  text.resize(static_cast<std::size_t>(got.bytes));
  if (rank_ == root) {
    control_bytes_ += (head.kBytes + text.size()) * static_cast<std::size_t>(size_ - 1);
  }
  DP_CHECK_MPI(
      MPI_Ibcast(text.data(), checked_cast<int>(got.bytes), MPI_CHAR, root, comm_, &request));
  wait(request, kWhat);
  if (head_of(text).checksum != got.checksum) throw_damaged(kWhat, root);
}

std::vector<std::string> Communicator::gather(const std::string& text) {
  constexpr const char* kWhat = "a gathering of texts";
  const std::vector<TextHead> heads = all_gather(head_of(text));
  std::vector<int> counts, starts;
  std::int64_t total = 0;
  for (const TextHead& head : heads) {
    counts.push_back(checked_cast<int>(head.bytes));
    starts.push_back(checked_cast<int>(total));
    total += head.bytes;
  }
  std::string all(rank_ == 0 ? static_cast<std::size_t>(total) : 0, '\0');
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Igatherv(text.data(), checked_cast<int>(text.size()), MPI_CHAR, all.data(),
                            counts.data(), starts.data(), MPI_CHAR, 0, comm_, &request));
  wait(request, kWhat);
  std::vector<std::string> texts;
  if (rank_ != 0) {
    control_bytes_ += text.size();
    return texts;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(counts[i])));
    if (head_of(texts.back()).checksum != heads[i].checksum) {
      throw_damaged(kWhat, static_cast<int>(i));
    }
  }
  return texts;
}

void Communicator::gather_bytes(std::span<const std::byte> mine, void* all) {
  constexpr const char* kWhat = "a gathering of rows";
  const int count = checked_cast<int>(mine.size());
  const std::uint32_t checksum = crc32c(mine);
  MPI_Request data = MPI_REQUEST_NULL, checksums = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Igather(mine.data(), count, MPI_BYTE, all, count, MPI_BYTE, 0, comm_, &data));
  DP_CHECK_MPI(MPI_Igather(&checksum, 1, MPI_UINT32_T, received_checksums_.data(), 1, MPI_UINT32_T,
                           0, comm_, &checksums));
  wait(data, kWhat);
  wait(checksums, kWhat);
  control_bytes_ += gather_cost(mine.size());
  for (int r = 0; rank_ == 0 && r < size_; ++r) {
    check_part({static_cast<const std::byte*>(all) + static_cast<std::size_t>(r) * mine.size(),
                mine.size()},
               r, kWhat);
  }
}

void Communicator::all_gather_bytes(std::span<const std::byte> mine, void* all) {
  constexpr const char* kWhat = "a gathering on all ranks";
  const int count = checked_cast<int>(mine.size());
  const std::uint32_t checksum = crc32c(mine);
  MPI_Request data = MPI_REQUEST_NULL, checksums = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Iallgather(mine.data(), count, MPI_BYTE, all, count, MPI_BYTE, comm_, &data));
  DP_CHECK_MPI(MPI_Iallgather(&checksum, 1, MPI_UINT32_T, received_checksums_.data(), 1,
                              MPI_UINT32_T, comm_, &checksums));
  wait(data, kWhat);
  wait(checksums, kWhat);
  control_bytes_ += (mine.size() + kSealBytes) * static_cast<std::size_t>(size_ - 1);
  for (int r = 0; r < size_; ++r) {
    check_part({static_cast<const std::byte*>(all) + static_cast<std::size_t>(r) * mine.size(),
                mine.size()},
               r, kWhat);
  }
}

void Communicator::all_to_all_bytes(std::span<const std::byte> mine,
                                    std::span<const std::size_t> first_of_rank, std::size_t size,
                                    std::span<std::byte> all) {
  constexpr const char* kWhat = "a distribution over all ranks";
  const auto ranks = static_cast<std::size_t>(size_);
  for (Parts* parts : {&sent_parts_, &received_parts_}) {
    parts->sizes.resize(ranks);
    parts->begins.resize(ranks);
  }
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t own = (first_of_rank[me + 1] - first_of_rank[me]) * size;
  DP_ASSERT(all.size() == ranks * own, "the result has {} bytes, but {} ranks send {} bytes each",
            all.size(), ranks, own);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t begin = first_of_rank[r] * size, bytes = first_of_rank[r + 1] * size - begin;
    sent_parts_.sizes[r] = checked_cast<int>(bytes);
    sent_parts_.begins[r] = checked_cast<int>(begin);
    received_parts_.sizes[r] = checked_cast<int>(own);
    received_parts_.begins[r] = checked_cast<int>(r * own);
    sent_checksums_[r] = crc32c(mine.subspan(begin, bytes));
    if (r != me) control_bytes_ += bytes + kSealBytes;
  }
  MPI_Request data = MPI_REQUEST_NULL, checksums = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Ialltoallv(mine.data(), sent_parts_.sizes.data(), sent_parts_.begins.data(),
                              MPI_BYTE, all.data(), received_parts_.sizes.data(),
                              received_parts_.begins.data(), MPI_BYTE, comm_, &data));
  DP_CHECK_MPI(MPI_Ialltoall(sent_checksums_.data(), 1, MPI_UINT32_T, received_checksums_.data(), 1,
                             MPI_UINT32_T, comm_, &checksums));
  wait(data, kWhat);
  wait(checksums, kWhat);
  for (int r = 0; r < size_; ++r) {
    check_part(all.subspan(static_cast<std::size_t>(r) * own, own), r, kWhat);
  }
}

// Gathers kPart values of each rank at a time and adds them in the order of ranks.
template <class T>
void Communicator::add_in_parts(std::span<T> values) {
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<T> all(std::min(values.size(), kPart) * ranks);
  for (std::size_t begin = 0; begin < values.size(); begin += kPart) {
    const std::span<T> part = values.subspan(begin, std::min(kPart, values.size() - begin));
    all_gather_bytes(std::as_bytes(part), all.data());
    for (std::size_t i = 0; i < part.size(); ++i) {
      T sum = 0;
      for (std::size_t r = 0; r < ranks; ++r) sum += all[r * part.size() + i];
      part[i] = sum;
    }
  }
}

void Communicator::all_sum(std::span<std::int64_t> values) { add_in_parts(values); }

void Communicator::all_sum(std::span<double> values) { add_in_parts(values); }

void Communicator::all_sum(std::span<float> values) { add_in_parts(values); }

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
  const std::vector<std::int32_t> codes = all_gather(is_ok ? 0 : static_cast<std::int32_t>(kind));
  const auto failing = std::ranges::find_if(codes, [](std::int32_t code) { return code != 0; });
  if (failing == codes.end()) return;
  std::string text = message;
  broadcast(text, static_cast<int>(failing - codes.begin()));
  throw AgreedError(static_cast<ErrorKind>(*failing), text);
}

}  // namespace dp
