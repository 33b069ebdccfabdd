// Chooses, on each host, the network interface over which the ranks communicate.
//
// By default Open MPI uses all interfaces that are up. It then tries bridges of containers and
// virtual machines, although these have the same address on every host, and it divides a message
// between the cable and the Wi-Fi. To avoid this, each host chooses one interface before MPI
// starts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

struct NetworkInterface {
  std::string name;
  std::uint32_t address = 0, mask = 0;  // IPv4, host byte order
  bool has_default_route = false;
  bool has_hardware = false;
  double bits_per_s = 0.0;  // as the driver reports it; 0 if it does not
};

// The interfaces that are up, have an IPv4 address and are not the loopback.
[[nodiscard]] std::vector<NetworkInterface> network_interfaces();

// Chooses the best interface; returns null if there is none. The criteria are, the most important
// first: it is not a bridge of a container engine or hypervisor; one of the launcher's addresses
// (`launcher`) is in its network; it has the default route; it is hardware; it comes first in
// `all`.
[[nodiscard]] const NetworkInterface* choose_interface(std::span<const NetworkInterface> all,
                                                       std::span<const std::uint32_t> launcher);

// The IPv4 addresses in Open MPI's contact text, "123.0;tcp://10.0.0.1,10.1.0.1:4711;...".
[[nodiscard]] std::vector<std::uint32_t> launcher_addresses(std::string_view contact);

// Sets OMPI_MCA_btl_tcp_if_include to the chosen interface, unless the user has chosen one. Call it
// before MPI_Init.
void use_best_interface();

// Describes, for people, the interfaces selected by a list in Open MPI's form (names and networks,
// such as "eth0,10.0.0.0/24"): "eth0, 10.0.0.1, 1.00 Gbit/s". After each network in the list, the
// text names the interfaces with an address in that network. `rate_text` formats a bandwidth in
// bit/s.
[[nodiscard]] std::string describe_interfaces(
    std::string_view list, std::span<const NetworkInterface> all,
    const std::function<std::string(double bit_per_s)>& rate_text);

// The interfaces that Open MPI uses, from btl_tcp_if_include and btl_tcp_if_exclude in the
// environment.
[[nodiscard]] std::vector<NetworkInterface> used_interfaces();

// The interface and source address with which this host sends to an address, from the kernel's
// routing table: "eth0, 10.0.0.1"; "none (why)" if there is no route. Nothing is sent.
[[nodiscard]] std::string describe_route(std::uint32_t to);

// describe_interfaces() for the interfaces that the environment selects on this host.
[[nodiscard]] std::string describe_network(
    const std::function<std::string(double bit_per_s)>& rate_text);

}  // namespace dp
