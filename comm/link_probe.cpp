#include "comm/link_probe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "comm/check.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// The largest tag that MPI guarantees, less one (clock_offset.cpp has it).
constexpr int kTag = 32766;

// Seconds in which this rank has sent so many bytes to the right and got as many from the left.
double pass_on(Communicator& communicator, std::vector<std::byte>& memory, std::size_t bytes) {
  const int size = communicator.size(), rank = communicator.rank();
  communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  MPI_Request requests[2];
  const int count = checked_cast<int>(bytes);
  DP_CHECK_MPI(MPI_Irecv(memory.data(), count, MPI_BYTE, (rank + size - 1) % size, kTag,
                         communicator.handle(), &requests[0]));
  DP_CHECK_MPI(MPI_Isend(memory.data() + bytes, count, MPI_BYTE, (rank + 1) % size, kTag,
                         communicator.handle(), &requests[1]));
  for (MPI_Request& request : requests) communicator.wait(request, "a measurement of the network");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double slowest(Communicator& communicator, double time_s) {
  const std::vector<double> all = communicator.all_gather(time_s);
  return *std::max_element(all.begin(), all.end());
}

// Of fp32; a guess for codecs whose payload depends on the values.
double payload_share(const CodecSpec& spec) {
  constexpr std::size_t kValues = std::size_t{1} << 16;
  constexpr double kSparse = 0.05;
  const std::unique_ptr<Codec> codec = make_codec(spec);
  const auto bytes = codec == nullptr ? std::nullopt : codec->fixed_payload_bytes(kValues);
  return bytes ? static_cast<double>(*bytes) / (kValues * sizeof(float)) : kSparse;
}

}  // namespace

LinkProbe probe_link(Communicator& communicator) {
  constexpr int kTrips = 20;
  constexpr double kLongEnough_s = 0.02;
  constexpr std::size_t kFirst = std::size_t{1} << 14, kLast = std::size_t{1} << 24;
  LinkProbe link;
  if (communicator.size() == 1) return link;
  std::vector<std::byte> memory(2 * kFirst);
  // The first message opens the connection.
  static_cast<void>(pass_on(communicator, memory, kFirst));
  double least_s = std::numeric_limits<double>::max();
  for (int trip = 0; trip < kTrips; ++trip) {
    least_s = std::min(least_s, pass_on(communicator, memory, 1));
  }
  link.latency_s = slowest(communicator, least_s);
  for (std::size_t bytes = kFirst;; bytes *= 2) {
    memory.resize(2 * bytes);
    // The best of three: a rank that just did not get a processor is not the network.
    double time_s = std::numeric_limits<double>::max();
    for (int trial = 0; trial < 3; ++trial) {
      time_s = std::min(time_s, slowest(communicator, pass_on(communicator, memory, bytes)));
    }
    link.bytes_per_s = static_cast<double>(bytes) / std::max(time_s - link.latency_s, 1e-9);
    if (time_s >= kLongEnough_s || bytes == kLast) return link;
  }
}

std::size_t choose_bucket_bytes(const LinkProbe& link, std::size_t ranks, const CodecSpec& codec) {
  constexpr double kWakeUp_s = 0.5e-3, kTimesTheWait = 2.0;
  constexpr double kMiB = 1 << 20;
  const double bytes = kTimesTheWait * static_cast<double>(ranks) * (link.latency_s + kWakeUp_s) *
                       link.bytes_per_s / payload_share(codec);
  const double power = std::ceil(std::log2(std::max(bytes, 1.0) / kMiB));
  return static_cast<std::size_t>(kMiB * std::exp2(std::clamp(power, -2.0, 3.0)));
}

}  // namespace dp
