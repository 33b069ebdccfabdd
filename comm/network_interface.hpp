// Which of a host's network interfaces the ranks talk through.
//
// Left alone, Open MPI uses all that are up, and so tries bridges of containers and virtual
// machines, which have the same address on every host, and stripes a message over the cable and the
// Wi-Fi. One is chosen here instead, on each host for itself, before MPI starts.
#pragma once

#include <cstdint>
#include <optional>
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
  double bits_per_s = 0.0;  // as the driver says; 0: it does not
};

// Those that are up, have an IPv4 address and are not the loopback.
[[nodiscard]] std::vector<NetworkInterface> network_interfaces();

// The best of them, by what counts most: no bridge of a container engine or hypervisor; in a
// network of the launcher's (`launcher`: its addresses); holds the default route; is hardware; the
// first. Null where there is none.
[[nodiscard]] const NetworkInterface* choose_interface(std::span<const NetworkInterface> all,
                                                       std::span<const std::uint32_t> launcher);

// The IPv4 addresses in Open MPI's contact text, "123.0;tcp://10.0.0.1,10.1.0.1:4711;...".
[[nodiscard]] std::vector<std::uint32_t> launcher_addresses(std::string_view contact);

// Tells Open MPI to use the chosen interface, by OMPI_MCA_btl_tcp_if_include; leaves a choice that
// the user has made alone. To be called before MPI_Init.
void use_best_interface();

// For people: "eth0, 10.0.0.1, 1 Gbit/s"; of what the environment names.
[[nodiscard]] std::string describe_network();

}  // namespace dp
