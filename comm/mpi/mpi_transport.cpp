#include "comm/mpi/mpi_transport.hpp"

#include <vector>

#include "comm/mpi/mpi_check.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

class MpiChannel final : public Channel {
 public:
  MpiChannel(MPI_Comm comm, std::size_t slots)
      : comm_(comm),
        requests_(slots, MPI_REQUEST_NULL),
        is_receive_(slots),
        indices_(slots),
        statuses_(slots),
        ended_(slots) {}

  void receive(std::size_t slot, std::span<std::byte> buffer, int from, int tag) override {
    is_receive_[slot] = 1;
    DP_CHECK_MPI(MPI_Irecv(buffer.data(), checked_cast<int>(buffer.size()), MPI_BYTE, from, tag,
                           comm_, &free_request(slot)));
  }
  void send(std::size_t slot, std::span<const std::byte> message, int to, int tag) override {
    is_receive_[slot] = 0;
    DP_CHECK_MPI(MPI_Isend(message.data(), checked_cast<int>(message.size()), MPI_BYTE, to, tag,
                           comm_, &free_request(slot)));
  }
  void receive_notice(std::size_t slot, std::span<std::byte> buffer, int tag) override {
    receive(slot, buffer, MPI_ANY_SOURCE, tag);
  }
  void send_notice(std::size_t slot, std::span<const std::byte> notice, int to, int tag) override {
    send(slot, notice, to, tag);
  }

  std::span<const Completion> poll() override {
    int count = 0;
    const int code = MPI_Testsome(checked_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), statuses_.data());
    const auto n = count == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(count);
    if (code != MPI_SUCCESS) {
      check_mpi_statuses(code, std::span(statuses_).first(n), "MPI_Testsome", __FILE__, __LINE__);
    }
    for (std::size_t i = 0; i < n; ++i) {
      ended_[i] = {.slot = static_cast<std::size_t>(indices_[i])};
      if (is_receive_[ended_[i].slot] == 0) continue;
      int bytes = 0;
      DP_CHECK_MPI(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
      ended_[i].bytes = checked_cast<std::size_t>(bytes);
      ended_[i].from = statuses_[i].MPI_SOURCE;
    }
    return std::span(ended_).first(n);
  }

 private:
  [[nodiscard]] MPI_Request& free_request(std::size_t slot) {
    DP_ASSERT(requests_[slot] == MPI_REQUEST_NULL, "slot {} is taken", slot);
    return requests_[slot];
  }

  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;  // by slot
  std::vector<std::uint8_t> is_receive_;
  std::vector<int> indices_;  // output of MPI_Testsome
  std::vector<MPI_Status> statuses_;
  std::vector<Completion> ended_;
};

}  // namespace

std::unique_ptr<Channel> MpiTransport::open(std::size_t slots) {
  return std::make_unique<MpiChannel>(communicator_.handle(), slots);
}

}  // namespace dp
