// Chooses the network interface of a host over which the ranks communicate.
//
// By default Open MPI uses all interfaces that are up. So it tries bridges of containers and
// virtual machines, which have the same address on every host, and divides a message between the
// cable and the Wi-Fi. Instead, each host chooses one interface here, before MPI starts.
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

// The best interface; null if there is none. It prefers, the most important first: one that is no
// bridge of a container engine or hypervisor; one in a network of the launcher (`launcher`: its
// addresses); the one with the default route; hardware; the first.
[[nodiscard]] const NetworkInterface* choose_interface(std::span<const NetworkInterface> all,
                                                       std::span<const std::uint32_t> launcher);

// The IPv4 addresses in Open MPI's contact text, "123.0;tcp://10.0.0.1,10.1.0.1:4711;...".
[[nodiscard]] std::vector<std::uint32_t> launcher_addresses(std::string_view contact);

// Tells Open MPI to use the chosen interface by OMPI_MCA_btl_tcp_if_include, unless the user has
// chosen one. Must be called before MPI_Init.
void use_best_interface();

// Which of the interfaces a list for Open MPI chooses: names and networks, separated by commas,
// such as "eth0,10.0.0.0/24". For people: "eth0, 10.0.0.1, 1.00 Gbit/s"; a network is followed by
// the interfaces with an address in it. `rate_text` writes a rate in bit/s.
[[nodiscard]] std::string describe_interfaces(
    std::string_view list, std::span<const NetworkInterface> all,
    const std::function<std::string(double bit_per_s)>& rate_text);

// The interfaces that Open MPI uses, as its variables btl_tcp_if_include and _exclude in the
// environment say.
[[nodiscard]] std::vector<NetworkInterface> used_interfaces();

// The interface by which this host sends to an address and the address that it sends from, as the
// kernel's table of routes says: "eth0, 10.0.0.1"; "none (why)" where there is no route. Nothing is
// sent.
[[nodiscard]] std::string describe_route(std::uint32_t to);

// What the environment chooses of the interfaces of this host, as describe_interfaces() says it.
[[nodiscard]] std::string describe_network(
    const std::function<std::string(double bit_per_s)>& rate_text);

}  // namespace dp
