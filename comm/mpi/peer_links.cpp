#include "comm/mpi/peer_links.hpp"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "comm/mpi/link_model.hpp"
#include "comm/mpi/network_interface.hpp"

namespace dp {
namespace {

// The least length of a tcp_info that includes the number of bytes sent.
constexpr socklen_t kLengthWithBytes =
    offsetof(tcp_info, tcpi_bytes_sent) + sizeof(tcp_info::tcpi_bytes_sent);

// The IPv4 address of the other end; 0 if the file is not a connection over IPv4.
std::uint32_t peer_of(int file) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(file, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr);
  }
  if (address.ss_family != AF_INET6) return 0;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  std::uint32_t four = 0;
  if (IN6_IS_ADDR_V4MAPPED(&six)) std::memcpy(&four, six.s6_addr + 12, sizeof four);
  return ntohl(four);
}

}  // namespace

PeerLinks::Addresses PeerLinks::mine() {
  Addresses found;
  std::size_t count = 0;
  for (const NetworkInterface& one : network_interfaces()) {
    if (count < kMostAddresses) found.of[count++] = one.address;
  }
  return found;
}

PeerLinks::PeerLinks(std::span<const std::string> hosts, std::span<const Addresses> addresses) {
  // Addresses that several hosts have, such as those of bridges of containers, are left out.
  std::map<std::uint32_t, std::string> first;
  std::vector<std::uint32_t> ambiguous;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    for (const std::uint32_t address : addresses[rank].of) {
      if (address == 0) continue;
      const auto [at, is_new] = first.emplace(address, hosts[rank]);
      if (!is_new && at->second != hosts[rank]) ambiguous.push_back(address);
    }
  }
  for (const std::uint32_t address : ambiguous) first.erase(address);
  host_of_ = std::move(first);
}

std::map<std::string, PeerLinks::Counts> PeerLinks::count() const {
  std::map<std::string, Counts> counts;
  std::error_code code;
  for (std::filesystem::directory_iterator at("/proc/self/fd", code), end; !code && at != end;
       at.increment(code)) {
    const std::string name = at->path().filename();
    int file = -1;
    std::from_chars(name.data(), name.data() + name.size(), file);
    const auto host = host_of_.find(peer_of(file));
    if (host == host_of_.end()) continue;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    Counts& sum = counts[host->second];
    sum.segments_in += info.tcpi_segs_in;
    sum.unacknowledged += info.tcpi_unacked;
    sum.segments_out += info.tcpi_segs_out;
    sum.bytes_out += info.tcpi_bytes_sent;
    sum.counts_bytes = sum.counts_bytes && length >= kLengthWithBytes;
    sum.sends_again = sum.sends_again || (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0);
  }
  return counts;
}

std::optional<double> PeerLinks::sent_on_wire() const {
  const auto all = count();
  if (all.empty()) return std::nullopt;
  double bytes = 0.0;
  for (const auto& [host, counts] : all) {
    if (!counts.counts_bytes) return std::nullopt;
    bytes += static_cast<double>(counts.bytes_out) +
             LinkModel::kFrameOverheadBytes * static_cast<double>(counts.segments_out);
  }
  return bytes;
}

void PeerLinks::mark() { marked_ = count(); }

LinkFinding PeerLinks::since_mark(const std::string& host) const {
  const auto now = count();
  const auto at = now.find(host);
  if (at == now.end()) return LinkFinding::unknown;
  if (!at->second.sends_again) {
    return at->second.unacknowledged == 0 ? LinkFinding::acknowledged : LinkFinding::unknown;
  }
  const auto before = marked_.find(host);
  const bool is_heard =
      at->second.segments_in > (before == marked_.end() ? 0 : before->second.segments_in);
  return is_heard ? LinkFinding::one_way : LinkFinding::nothing;
}

}  // namespace dp
