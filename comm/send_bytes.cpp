#include "comm/send_bytes.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "comm/check.hpp"
#include "comm/tags.hpp"

namespace dp {
namespace {

// A deadline holds for a piece, which takes half a second at 1 Mbit/s. The sender waits until the
// receiver has begun to take a piece, a few pieces later: so little is under way, and what the
// ranks ask each other does not wait behind it.
constexpr std::size_t kPiece = 64u << 10, kUnderWay = 4;

}  // namespace

void send_bytes(Communicator& comm, std::span<const std::byte> bytes, int to) {
  Communicator::Busy busy(comm);
  std::array<MPI_Request, kUnderWay> under_way;
  under_way.fill(MPI_REQUEST_NULL);
  std::size_t next = 0;
  const auto wait_for_next = [&] {
    comm.wait(under_way[next], "sending a part of a checkpoint");
    busy.comes_on();
  };
  const auto send = [&](const void* data, std::size_t size) {
    wait_for_next();
    DP_CHECK_MPI(MPI_Issend(data, checked_cast<int>(size), MPI_BYTE, to, kBytesTag, comm.handle(),
                            &under_way[next]));
    next = (next + 1) % kUnderWay;
  };
  const std::uint64_t size = bytes.size();
  send(&size, sizeof(size));
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size()))) {
    send(bytes.data(), std::min(kPiece, bytes.size()));
  }
  for (std::size_t i = 0; i < kUnderWay; ++i, next = (next + 1) % kUnderWay) wait_for_next();
}

std::vector<std::byte> receive_bytes(Communicator& comm, int from) {
  Communicator::Busy busy(comm);
  const auto receive = [&](void* data, std::size_t size) {
    MPI_Request request = MPI_REQUEST_NULL;
    DP_CHECK_MPI(MPI_Irecv(data, checked_cast<int>(size), MPI_BYTE, from, kBytesTag, comm.handle(),
                           &request));
    comm.wait(request, "receiving a part of a checkpoint");
    busy.comes_on();
  };
  std::uint64_t size = 0;
  receive(&size, sizeof(size));
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < size;) {
    // Grows with what has come, so that a damaged length claims no memory.
    const std::size_t piece = std::min<std::size_t>(kPiece, size - at);
    bytes.resize(at + piece);
    receive(bytes.data() + at, piece);
    at += piece;
  }
  return bytes;
}

}  // namespace dp
