#include "comm/mpi/network_interface.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <tuple>

namespace dp {
namespace {

constexpr const char* kInclude = "OMPI_MCA_btl_tcp_if_include";
constexpr const char* kExclude = "OMPI_MCA_btl_tcp_if_exclude";

const std::filesystem::path kSystemFolder = "/sys/class/net";

// Names of bridges and ports that container engines and hypervisors create.
bool is_of_containers(std::string_view name) {
  constexpr std::array<std::string_view, 10> kPrefixes = {
      "docker", "br-", "virbr", "vnet", "veth", "cni", "flannel", "cali", "lxc", "podman"};
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// The interface of the first default route in the kernel's table; empty if there is none.
std::string default_route() {
  std::ifstream table("/proc/net/route");
  std::string line;
  std::getline(table, line);  // skip the line of titles
  std::string best;
  long best_metric = 0;
  for (std::string name, destination, gateway, flags; table >> name >> destination;) {
    long reference = 0, use = 0, metric = 0;
    std::string mask;
    table >> gateway >> flags >> reference >> use >> metric >> mask;
    std::getline(table, line);
    if (destination != "00000000" || mask != "00000000") continue;
    if (best.empty() || metric < best_metric) {
      best = name;
      best_metric = metric;
    }
  }
  return best;
}

double speed_of(const std::string& name) {
  std::ifstream file(kSystemFolder / name / "speed");
  double mbit = 0.0;
  return file >> mbit && mbit > 0.0 ? 1e6 * mbit : 0.0;
}

std::uint32_t address_in(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

struct Network {
  std::uint32_t address = 0, mask = 0;
  [[nodiscard]] bool has(const NetworkInterface& one) const {
    return (one.address & mask) == (address & mask);
  }
};

// Parses a network in Open MPI's form, "10.0.0.0/24". Returns nothing for the name of an interface.
std::optional<Network> parse_network(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view bits_text = text.substr(slash + 1);
  unsigned bits = 0;
  const auto [end, error] =
      std::from_chars(bits_text.data(), bits_text.data() + bits_text.size(), bits);
  in_addr address{};
  if (error != std::errc{} || end != bits_text.data() + bits_text.size() || bits > 32 ||
      inet_pton(AF_INET, std::string(text.substr(0, slash)).c_str(), &address) != 1) {
    return std::nullopt;
  }
  return Network{.address = ntohl(address.s_addr), .mask = bits == 0 ? 0 : ~0u << (32 - bits)};
}

std::string dotted(std::uint32_t host_order) {
  in_addr address{};
  address.s_addr = htonl(host_order);
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address, text, sizeof text);
  return text;
}

using RateText = std::function<std::string(double)>;

std::string describe(const NetworkInterface& one, const RateText& rate_text) {
  std::string text = fmt::format("{}, {}", one.name, dotted(one.address));
  if (rate_text && one.bits_per_s > 0.0) text += ", " + rate_text(one.bits_per_s);
  return text;
}

std::vector<std::string> items_of(std::string_view list) {
  std::vector<std::string> items;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    items.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return items;
}

// Whether an item of Open MPI's list selects this interface. An item is a name or a network.
bool is_chosen(const NetworkInterface& one, const std::string& item) {
  const std::optional<Network> network = parse_network(item);
  return network ? network->has(one) : one.name == item;
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  const std::string route = default_route();
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const bool is_usable = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0 &&
                           (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_usable || at->ifa_addr == nullptr || at->ifa_netmask == nullptr ||
        at->ifa_addr->sa_family != AF_INET) {
      continue;
    }
    const std::string name = at->ifa_name;
    std::error_code code;
    all.push_back({.name = name,
                   .address = address_in(at->ifa_addr),
                   .mask = address_in(at->ifa_netmask),
                   .has_default_route = name == route,
                   .has_hardware = std::filesystem::exists(kSystemFolder / name / "device", code),
                   .bits_per_s = speed_of(name)});
  }
  freeifaddrs(list);
  return all;
}

const NetworkInterface* choose_interface(std::span<const NetworkInterface> all,
                                         std::span<const std::uint32_t> launcher) {
  const auto merits = [&](const NetworkInterface& one) {
    bool reaches_launcher = false;
    for (const std::uint32_t address : launcher) {
      reaches_launcher = reaches_launcher || (address & one.mask) == (one.address & one.mask);
    }
    return std::tuple(!is_of_containers(one.name), reaches_launcher, one.has_default_route,
                      one.has_hardware);
  };
  const NetworkInterface* best = nullptr;
  for (const NetworkInterface& one : all) {
    if (best == nullptr || merits(one) > merits(*best)) best = &one;
  }
  return best;
}

std::vector<std::uint32_t> launcher_addresses(std::string_view contact) {
  std::vector<std::uint32_t> addresses;
  constexpr std::string_view kStart = "tcp://";
  const std::size_t start = contact.find(kStart);
  if (start == std::string_view::npos) return addresses;
  contact.remove_prefix(start + kStart.size());
  contact = contact.substr(0, contact.find(':'));
  while (!contact.empty()) {
    const std::size_t end = contact.find(',');
    in_addr address{};
    if (inet_pton(AF_INET, std::string(contact.substr(0, end)).c_str(), &address) == 1) {
      addresses.push_back(ntohl(address.s_addr));
    }
    contact.remove_prefix(end == std::string_view::npos ? contact.size() : end + 1);
  }
  return addresses;
}

void use_best_interface() {
  if (std::getenv(kInclude) != nullptr || std::getenv(kExclude) != nullptr) return;
  const char* contact = std::getenv("OMPI_MCA_orte_hnp_uri");
  const std::vector<NetworkInterface> all = network_interfaces();
  const NetworkInterface* best =
      choose_interface(all, launcher_addresses(contact == nullptr ? "" : contact));
  if (best != nullptr) setenv(kInclude, best->name.c_str(), 1);
}

std::string describe_interfaces(std::string_view list, std::span<const NetworkInterface> all,
                                const std::function<std::string(double)>& rate_text) {
  std::vector<std::string> items;
  for (const std::string& item : items_of(list)) {
    std::vector<std::string> found;
    for (const NetworkInterface& one : all) {
      if (is_chosen(one, item)) found.push_back(describe(one, rate_text));
    }
    if (parse_network(item)) {
      items.push_back(fmt::format("{}: {}", item,
                                  found.empty() ? "no interface of this host has an address in it"
                                                : fmt::format("{}", fmt::join(found, " and "))));
    } else {
      items.push_back(found.empty() ? item : found.front());
    }
  }
  return fmt::format("{}", fmt::join(items, "; "));
}

std::string describe_network(const std::function<std::string(double)>& rate_text) {
  const char* chosen = std::getenv(kInclude);
  if (chosen != nullptr) return describe_interfaces(chosen, network_interfaces(), rate_text);
  const char* excluded = std::getenv(kExclude);
  if (excluded == nullptr) return "the interfaces that Open MPI chooses";
  std::vector<std::string> items;
  for (const NetworkInterface& one : used_interfaces()) items.push_back(describe(one, rate_text));
  return fmt::format("all but {}: {}", excluded,
                     items.empty() ? "none" : fmt::format("{}", fmt::join(items, "; ")));
}

std::vector<NetworkInterface> used_interfaces() {
  std::vector<NetworkInterface> used = network_interfaces();
  const char *chosen = std::getenv(kInclude), *excluded = std::getenv(kExclude);
  const char* list = chosen != nullptr ? chosen : excluded;
  if (list == nullptr) return used;
  std::erase_if(used, [&](const NetworkInterface& one) {
    const bool is_in_list = std::ranges::any_of(
        items_of(list), [&](const std::string& item) { return is_chosen(one, item); });
    return is_in_list != (chosen != nullptr);
  });
  return used;
}

std::string describe_route(std::uint32_t to) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);  // any port will do: nothing is sent
  address.sin_addr.s_addr = htonl(to);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const bool is_found = socket >= 0 && ::connect(socket, generic, sizeof address) == 0 &&
                        ::getsockname(socket, generic, &size) == 0;
  const int error = errno;
  if (socket >= 0) ::close(socket);
  if (!is_found) return fmt::format("none ({})", std::strerror(error));
  const std::uint32_t source = address_in(generic);
  for (const NetworkInterface& one : network_interfaces()) {
    if (one.address == source) return describe(one, {});
  }
  return dotted(source);
}

}  // namespace dp
