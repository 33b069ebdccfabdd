// A small run that something happens to: failure_test.sh looks at what is said and how it ends.
//     failure_victim CASE PID_FOLDER [TOPOLOGY]
// The topology "gather" is a ring with a gathering in each step.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"
#include "comm/mpi/runtime/mpi_runtime.hpp"
#include "comm/mpi/tags.hpp"
#include "comm/reducer/reducer.hpp"

namespace {

using namespace dp;
using namespace std::chrono_literals;

// Of the next message with this tag, this rank flips the given bit, counted from its end; negative:
// of none.
std::atomic<int> flipped_tag = -1;
std::size_t flipped_bit = 0;

constexpr std::size_t kSegment = 2048, kElements = 50'000;  // floats, of a bucket

// The first message from rank 1 to rank 2 that is due on a ring of four (message_header.hpp),
// with a payload of the right length that no encoder writes: its scale is NaN.
std::vector<std::byte> damaged_segment(std::uint64_t step) {
  const ExchangeShape shape = {.elements = kElements, .ranks = 4, .segment = kSegment};
  const auto first_of_chunk_1 = static_cast<std::uint32_t>(shape.segments());
  const MessageHeader header = {.kind = MessageHeader::kSegment,
                                .step = static_cast<std::uint32_t>(step),
                                .number = MessageHeader::number_of(first_of_chunk_1, false)};
  const auto codec = make_codec(parse_codec_spec("q8"));
  std::vector<std::byte> message(sizeof header + codec->max_payload_bytes(shape.segment_size(1, 0)),
                                 std::byte{0xFF});
  std::memcpy(message.data(), &header, sizeof header);
  message.resize(message.size() + kSealBytes);
  seal(message);
  return message;
}

}  // namespace

// Stands before MPI's own function.
extern "C" int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int expected = tag;
  if (flipped_tag.compare_exchange_strong(expected, -1)) {
    const auto* begin = static_cast<const std::byte*>(data);
    static std::vector<std::byte> copy(begin, begin + n);
    const std::size_t bit = 8 * copy.size() - 1 - flipped_bit;
    copy[bit / 8] ^= std::byte{1} << (bit % 8);
    data = copy.data();
  }
  return PMPI_Isend(data, n, type, to, tag, comm, request);
}

namespace {

void run(const std::string& what, const std::string& folder, const std::string& topology) {
  Communicator comm;
  if (what == "agree") {
    comm.together([&] {
      if (comm.rank() > 0) throw_error(ErrorKind::data, "no pictures on rank {}", comm.rank());
    });
  }
  std::vector<float> gradient(2 * kElements, 1.0f);
  const std::vector<TensorSlot> tensors = {{0, 100, kElements / 100, false},
                                           {kElements, 100, kElements / 100, false}};
  // So slow that the server has its sums long before the others have them.
  const double throttle = what == "throttle" ? 2e6 : 0.0;
  const bool gathers = topology == "gather";
  GatherDesk desk(static_cast<std::size_t>(comm.size()));
  desk.reserve(1);
  Reducer reducer(comm, gradient,
                  plan_buckets(tensors, {.bucket_bytes = 1000, .codec = parse_codec_spec("q8")}),
                  {.topology = gathers ? "ring" : topology,
                   .segment_bytes = kSegment * sizeof(float),
                   .comm_timeout_s = 2.0,
                   .throttle_bits_per_s = throttle,
                   .desk = gathers ? &desk : nullptr});
  for (std::uint64_t step = 0;; ++step) {
    reducer.begin_step(step);
    if (step == 20) {
      // The script stops or kills the process whose number it finds here, in the middle of a run.
      const std::string path = folder + "/" + std::to_string(comm.rank());
      std::FILE* file = std::fopen((path + ".new").c_str(), "w");
      std::fprintf(file, "%d\n", getpid());
      std::fclose(file);
      std::rename((path + ".new").c_str(), path.c_str());
    }
    std::this_thread::sleep_for(5ms);
    if (what == "flip" && step == 30 && comm.rank() == 1) {
      // Bucket 0's stream is the first; an exchange has odd parity in its first step and each in
      // turn. A payload, a start notice, the floats of a gathering.
      flipped_bit = 40;
      flipped_tag = gathers ? kGatherTag : stream_tag(0, 1, topology == "tree" ? 1 : 0);
    }
    if (what == "throw" && step == 30 && comm.rank() == 1) {
      throw_error(ErrorKind::device, "rank 1 is out of memory");
    }
    // Longer than the timeout: whoever computes is not silent.
    if (what == "late" && step == 30 && comm.rank() == 1) std::this_thread::sleep_for(5s);
    if (gathers) {
      std::vector<float> mine(1), all(desk.ranks());
      desk.gather(Pass::forward, mine, all);
    }
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    (void)reducer.wait_step();
    if (what == "late" && step == 40) return;
    // As all ranks do when a step tells them that the run diverges.
    if (what == "throttle" && step == 1) throw AgreedError(ErrorKind::data, "the run diverges");
    const bool is_damage = what == "damage" || what == "foreign" || what == "payload";
    if (is_damage && step == 30 && comm.rank() == 1) {
      // A message that nobody of ours would send, in the place of the next step's first one: that
      // with the first segment of chunk 1, to rank 2.
      reducer.run([&](Communicator& c) {
        std::vector<std::byte> message(64);
        std::memcpy(message.data(), "rubbish", 7);
        if (what == "foreign") seal(message);
        if (what == "payload") message = damaged_segment(step + 1);
        // An exchange has odd parity in its first step and each in turn.
        const int next_steps_tag = stream_tag(0, step % 2 == 0 ? 0 : 1, 0);
        MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, 2, next_steps_tag,
                 c.handle());
      });
    } else if (is_damage && step == 30) {
      reducer.run([](Communicator&) {});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(&argc, &argv);
  try {
    run(argv[1], argv[2], argc > 3 ? argv[3] : "ring");
    return 0;
  } catch (...) {
    return mpi.end_with_error("victim");
  }
}
