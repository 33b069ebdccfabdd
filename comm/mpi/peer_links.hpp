// Asks the kernel about the TCP connections to the other hosts. For each host, it finds out whether
// sent data arrive at the host, and whether anything arrives from the host.
//
// A rank that does not answer may be stopped, or its host may be down, or the link may be dead,
// even in one direction only. TCP's counters distinguish these cases: each connection counts the
// segments received, and the segments sent and not acknowledged. Only this process' connections are
// read, and nothing is sent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace dp {

enum class LinkFinding {
  unknown,       // no connection to that host, or it is this host
  acknowledged,  // the other host acknowledges sent data: the process is at fault, not the link
  one_way,       // segments arrive from there, but sent data is not acknowledged
  nothing        // nothing arrives, and sent data is not acknowledged
};

class PeerLinks {
 public:
  static constexpr std::size_t kMostAddresses = 4;
  // IPv4 addresses, host byte order; 0: none.
  struct Addresses {
    std::uint32_t of[kMostAddresses] = {};
  };
  // This host's addresses, to be sent to the other ranks.
  [[nodiscard]] static Addresses mine();

  PeerLinks() = default;
  // Both arguments are indexed by rank.
  PeerLinks(std::span<const std::string> hosts, std::span<const Addresses> addresses);

  // Records the connections' counters; since_mark() compares with them.
  void mark();
  [[nodiscard]] LinkFinding since_mark(const std::string& host) const;

  // The bytes that this process has sent on its connections to the ranks' hosts since they were
  // opened, including headers of Ethernet, IP and TCP, acknowledgements and retransmissions.
  // Returns nothing if there is no such connection, or if the kernel does not count bytes (before
  // 4.19).
  [[nodiscard]] std::optional<double> sent_on_wire() const;

 private:
  struct Counts {
    std::uint64_t segments_in = 0, unacknowledged = 0;
    std::uint64_t segments_out = 0, bytes_out = 0;
    bool sends_again = false, counts_bytes = true;
  };
  [[nodiscard]] std::map<std::string, Counts> count() const;

  std::map<std::uint32_t, std::string> host_of_;  // by address; without shared addresses
  std::map<std::string, Counts> marked_;
};

}  // namespace dp
