// What the kernel knows about the connections to the other hosts: whether what this host sends
// arrives there, and whether anything arrives from there.
//
// A rank that does not answer may be stopped, or its host may be down, or the link may be dead,
// even in one direction only. TCP tells them apart: each connection counts the segments that came,
// and those that were sent and not acknowledged. Only the connections of this process are looked
// at, and nothing is sent for it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace dp {

enum class LinkFinding {
  unknown,       // there is no connection to that host, or it is this one
  acknowledged,  // the other host acknowledges what is sent: the process is at fault, not the link
  one_way,       // segments come from there, but what is sent there is not acknowledged
  nothing        // nothing comes, and what is sent there is not acknowledged
};

class PeerLinks {
 public:
  static constexpr std::size_t kMostAddresses = 4;
  // IPv4 addresses, host byte order; 0: none.
  struct Addresses {
    std::uint32_t of[kMostAddresses] = {};
  };
  // Of this host, for the others.
  [[nodiscard]] static Addresses mine();

  PeerLinks() = default;
  // Both by rank.
  PeerLinks(std::span<const std::string> hosts, std::span<const Addresses> addresses);

  // A host's connections are compared with what they are at this moment.
  void mark();
  [[nodiscard]] LinkFinding since_mark(const std::string& host) const;

  // The bytes that this process has sent on its connections to the ranks' hosts since they were
  // opened, including headers of Ethernet, IP and TCP, acknowledgements and retransmissions.
  // Nothing if there is no such connection, or if the kernel does not count bytes (before 4.19).
  [[nodiscard]] std::optional<double> sent_on_wire() const;

 private:
  struct Counts {
    std::uint64_t segments_in = 0, unacknowledged = 0;
    std::uint64_t segments_out = 0, bytes_out = 0;
    bool sends_again = false, counts_bytes = true;
  };
  [[nodiscard]] std::map<std::string, Counts> count() const;

  std::map<std::uint32_t, std::string> host_of_;  // by address; only what one host alone has
  std::map<std::string, Counts> marked_;
};

}  // namespace dp
