#include "comm/mpi/send_bytes.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/seal.hpp"
#include "comm/mpi/tags.hpp"

namespace dp {
namespace {

// Bytes are sent in pieces of kPiece bytes. Each piece has its own deadline; at 1 Mbit/s a piece
// takes half a second. When kUnderWay pieces are under way, the sender waits until the receiver
// begins to take the oldest piece. Pings therefore wait only for a few pieces.
constexpr std::size_t kPiece = 64u << 10, kUnderWay = 4;

}  // namespace

void send_bytes(Communicator& comm, std::span<const std::byte> bytes, int to) {
  Communicator::Busy busy(comm);
  struct UnderWay {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> message;
  };
  std::array<UnderWay, kUnderWay> under_way;
  std::size_t next = 0;
  const auto wait_for_next = [&] {
    comm.wait(under_way[next].request, "sending a part of a checkpoint");
    busy.comes_on();
  };
  const auto send = [&](std::span<const std::byte> piece) {
    wait_for_next();
    auto& [request, message] = under_way[next];
    message.assign(piece.begin(), piece.end());
    message.resize(piece.size() + kSealBytes);
    seal(message);
    DP_CHECK_MPI(MPI_Issend(message.data(), checked_cast<int>(message.size()), MPI_BYTE, to,
                            kBytesTag, comm.handle(), &request));
    next = (next + 1) % kUnderWay;
  };
  const std::uint64_t size = bytes.size();
  send(std::as_bytes(std::span(&size, 1)));
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size()))) {
    send(bytes.first(std::min(kPiece, bytes.size())));
  }
  for (std::size_t i = 0; i < kUnderWay; ++i, next = (next + 1) % kUnderWay) wait_for_next();
}

std::vector<std::byte> receive_bytes(Communicator& comm, int from) {
  Communicator::Busy busy(comm);
  const auto receive = [&](std::span<std::byte> message) {
    MPI_Request request = MPI_REQUEST_NULL;
    DP_CHECK_MPI(MPI_Irecv(message.data(), checked_cast<int>(message.size()), MPI_BYTE, from,
                           kBytesTag, comm.handle(), &request));
    comm.wait(request, "receiving a part of a checkpoint");
    if (!is_intact(message)) comm.throw_damaged("a part of a checkpoint", from);
    busy.comes_on();
  };
  Sealed<std::uint64_t> length;
  receive(length.bytes());
  const std::uint64_t size = length.value();
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < size;) {
    // The result grows with the received bytes. The next piece overwrites this piece's seal.
    const std::size_t piece = std::min<std::size_t>(kPiece, size - at);
    bytes.resize(at + piece + kSealBytes);
    receive(std::span(bytes).subspan(at));
    at += piece;
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace dp
