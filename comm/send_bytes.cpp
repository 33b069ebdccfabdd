#include "comm/send_bytes.hpp"

#include <algorithm>
#include <cstdint>

#include "comm/check.hpp"
#include "comm/tags.hpp"

namespace dp {
namespace {

// MPI counts in ints, and a deadline holds for a piece.
constexpr std::size_t kPiece = 1u << 20;

}  // namespace

void send_bytes(Communicator& comm, std::span<const std::byte> bytes, int to) {
  const auto send = [&](const void* data, std::size_t size) {
    MPI_Request request = MPI_REQUEST_NULL;
    DP_CHECK_MPI(
        MPI_Isend(data, checked_cast<int>(size), MPI_BYTE, to, kBytesTag, comm.handle(), &request));
    comm.wait(request, "sending a part of a checkpoint");
  };
  const std::uint64_t size = bytes.size();
  send(&size, sizeof(size));
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size()))) {
    send(bytes.data(), std::min(kPiece, bytes.size()));
  }
}

std::vector<std::byte> receive_bytes(Communicator& comm, int from) {
  const auto receive = [&](void* data, std::size_t size) {
    MPI_Request request = MPI_REQUEST_NULL;
    DP_CHECK_MPI(MPI_Irecv(data, checked_cast<int>(size), MPI_BYTE, from, kBytesTag, comm.handle(),
                           &request));
    comm.wait(request, "receiving a part of a checkpoint");
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
