#include "comm/mpi/seal.hpp"

#include <string>

#include "kernels/base/error.hpp"

namespace dp {

void throw_damaged(std::string_view what, const MessageEnd& from, const MessageEnd& to) {
  std::string hosts;
  if (!from.host.empty() && from.host == to.host) {
    hosts = fmt::format(" (both on host {})", to.host);
  } else if (!from.host.empty() && !to.host.empty()) {
    hosts = fmt::format(" (hosts {} and {})", from.host, to.host);
  }
  throw_error(ErrorKind::communication,
              "{} was damaged on the way between rank {} and rank {}{}: its checksum is wrong, and "
              "nothing of it was used",
              what, from.rank, to.rank, hosts);
}

}  // namespace dp
