// Which network interface is taken, on made-up hosts and on this one; and which of a process'
// connections are strangers'.
#include "comm/mpi/network_interface.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "comm/mpi/runtime/strangers.hpp"

namespace dp {
namespace {

constexpr std::uint32_t address(unsigned a, unsigned b, unsigned c, unsigned d) {
  return a << 24 | b << 16 | c << 8 | d;
}
// Writes rates in the console's way, which this folder does not know.
std::string rate_text(double bit_per_s) {
  return std::to_string(std::lround(bit_per_s)) + " bit/s";
}

constexpr std::uint32_t kMask24 = address(255, 255, 255, 0), kMask16 = address(255, 255, 0, 0);

TEST(NetworkInterface, ContactTextsOfTheLauncher) {
  EXPECT_EQ(launcher_addresses("15.0;tcp://10.0.0.1:4711"), (std::vector{address(10, 0, 0, 1)}));
  EXPECT_EQ(launcher_addresses("15.0;tcp://10.0.0.1,172.17.0.1:33999;tcp6://[fd00::2]:43125"),
            (std::vector{address(10, 0, 0, 1), address(172, 17, 0, 1)}));
  EXPECT_TRUE(launcher_addresses("").empty());
  EXPECT_TRUE(launcher_addresses("15.0;tcp6://[fd00::2]:43125").empty());
  EXPECT_TRUE(launcher_addresses("tcp://,x,:").empty());
}

TEST(NetworkInterface, TheBestByWhatCountsMost) {
  const NetworkInterface docker = {
      .name = "docker0", .address = address(172, 17, 0, 1), .mask = kMask16};
  const NetworkInterface wifi = {.name = "wlan0",
                                 .address = address(192, 168, 1, 9),
                                 .mask = kMask24,
                                 .has_default_route = true,
                                 .has_hardware = true};
  const NetworkInterface cable = {
      .name = "enp3s0", .address = address(10, 0, 0, 2), .mask = kMask24, .has_hardware = true};
  const NetworkInterface tunnel = {.name = "wg0", .address = address(10, 9, 0, 2), .mask = kMask24};
  const NetworkInterface all[] = {docker, tunnel, cable, wifi};
  const auto name = [&](std::vector<std::uint32_t> launcher) {
    return choose_interface(all, launcher)->name;
  };
  // Nothing known of the launcher: the default route.
  EXPECT_EQ(name({}), "wlan0");
  // The network that the launcher is in, wherever the default route leads.
  EXPECT_EQ(name({address(10, 0, 0, 1)}), "enp3s0");
  EXPECT_EQ(name({address(10, 9, 0, 1)}), "wg0");
  // Every host has that address.
  EXPECT_EQ(name({address(172, 17, 0, 1)}), "wlan0");
  EXPECT_EQ(name({address(172, 17, 0, 1), address(10, 0, 0, 1)}), "enp3s0");
  // In several of its networks: the one with the default route.
  EXPECT_EQ(name({address(10, 0, 0, 1), address(192, 168, 1, 1)}), "wlan0");
  // Better than none.
  EXPECT_EQ(choose_interface(std::span(&docker, 1), {})->name, "docker0");
  EXPECT_EQ(choose_interface({}, {}), nullptr);
}

TEST(NetworkInterface, AUsersChoiceStays) {
  setenv("OMPI_MCA_btl_tcp_if_include", "mine0", 1);
  use_best_interface();
  EXPECT_STREQ(std::getenv("OMPI_MCA_btl_tcp_if_include"), "mine0");
  EXPECT_EQ(describe_network(rate_text), "mine0");
  unsetenv("OMPI_MCA_btl_tcp_if_include");
  // Open MPI refuses to be told both.
  setenv("OMPI_MCA_btl_tcp_if_exclude", "lo", 1);
  use_best_interface();
  EXPECT_EQ(std::getenv("OMPI_MCA_btl_tcp_if_include"), nullptr);
  const std::vector<NetworkInterface> all = network_interfaces();
  const std::string text = describe_network(rate_text);
  EXPECT_EQ(text.find("all but lo: "), 0u) << text;
  EXPECT_EQ(used_interfaces().size(), all.size());
  for (const NetworkInterface& one : all) {
    EXPECT_NE(text.find(one.name + ", "), std::string::npos) << text;
    setenv("OMPI_MCA_btl_tcp_if_exclude", one.name.c_str(), 1);
    EXPECT_EQ(std::ranges::count(used_interfaces(), one.name, &NetworkInterface::name), 0);
  }
  unsetenv("OMPI_MCA_btl_tcp_if_exclude");
}

TEST(NetworkInterface, NetworksAreResolvedToInterfaces) {
  const NetworkInterface all[] = {
      {.name = "wlan0", .address = address(192, 168, 1, 9), .mask = kMask24},
      {.name = "eth0", .address = address(10, 0, 0, 2), .mask = kMask24, .bits_per_s = 1e9},
      {.name = "eth1", .address = address(10, 0, 7, 2), .mask = kMask24}};
  const auto describe = [&](std::string_view list) {
    return describe_interfaces(list, all, rate_text);
  };
  EXPECT_EQ(describe("eth0"), "eth0, 10.0.0.2, 1000000000 bit/s");
  EXPECT_EQ(describe("10.0.0.0/24"), "10.0.0.0/24: eth0, 10.0.0.2, 1000000000 bit/s");
  // Open MPI takes a host's address as well as the network's.
  EXPECT_EQ(describe("192.168.1.77/24"), "192.168.1.77/24: wlan0, 192.168.1.9");
  EXPECT_EQ(describe("10.0.0.0/16"),
            "10.0.0.0/16: eth0, 10.0.0.2, 1000000000 bit/s and eth1, 10.0.7.2");
  EXPECT_EQ(describe("wlan0,10.0.7.0/24"), "wlan0, 192.168.1.9; 10.0.7.0/24: eth1, 10.0.7.2");
  EXPECT_EQ(describe("10.9.0.0/24"), "10.9.0.0/24: no interface of this host has an address in it");
  EXPECT_EQ(describe("0.0.0.0/0").find("0.0.0.0/0: wlan0, 192.168.1.9 and eth0"), 0u);
  for (const char* other : {"mine0", "10.0.0.0/33", "10.0.0/24", "10.0.0.0/", "10.0.0.0/x"}) {
    EXPECT_EQ(describe(other), other);
  }
}

TEST(NetworkInterface, ThisHost) {
  const std::vector<NetworkInterface> all = network_interfaces();
  for (const NetworkInterface& one : all) {
    EXPECT_NE(one.name, "lo");
    EXPECT_NE(one.address, 0u) << one.name;
  }
  use_best_interface();
  const char* chosen = std::getenv("OMPI_MCA_btl_tcp_if_include");
  ASSERT_EQ(chosen == nullptr, all.empty());
  if (chosen != nullptr) {
    const std::string text = describe_network(rate_text);
    EXPECT_EQ(text.find(std::string(chosen) + ", "), 0u) << text;
  }
  unsetenv("OMPI_MCA_btl_tcp_if_include");
}

TEST(NetworkInterface, RoutesAreTheKernels) {
  EXPECT_EQ(describe_route(address(127, 0, 0, 1)), "127.0.0.1");
  // Without leave to send to all hosts the kernel refuses this address.
  EXPECT_EQ(describe_route(address(255, 255, 255, 255)).find("none ("), 0u);
  for (const NetworkInterface& one : network_interfaces()) {
    EXPECT_EQ(describe_route(one.address).find(one.name + ", "), 0u) << one.name;
  }
}

// A port of this process, and connections to it with both ends here.
class Port {
 public:
  Port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listening_, 8), 0);
  }
  ~Port() {
    for (const int file : files_) ::close(file);
    ::close(listening_);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // The accepted end; the other one has sent so many bytes, which have come.
  int accept_with(std::size_t bytes) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &length);
    const int other = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(other, reinterpret_cast<sockaddr*>(&address), length), 0);
    const std::string text(bytes, 'x');
    EXPECT_EQ(::send(other, text.data(), bytes, 0), static_cast<ssize_t>(bytes));
    files_.push_back(other);
    files_.push_back(::accept(listening_, nullptr, nullptr));
    char come[64];
    while (bytes > 0 &&
           ::recv(files_.back(), come, sizeof come, MSG_PEEK) < static_cast<ssize_t>(bytes)) {
    }
    return files_.back();
  }

 private:
  int listening_ = ::socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> files_;
};

// The next byte; 0 at the end of the connection.
ssize_t bytes_left(int file) {
  char byte = 0;
  return ::recv(file, &byte, 1, MSG_DONTWAIT);
}

TEST(Strangers, AreConnectionsWithHalfAGreeting) {
  Port port;
  const int peer = port.accept_with(24), silent = port.accept_with(0);
  const int first = port.accept_with(1), last = port.accept_with(23);
  // A connection of ours to somebody else's port.
  int pair[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  Strangers strangers;
  EXPECT_TRUE(strangers.look().empty());
  EXPECT_TRUE(strangers.has_seen());
  EXPECT_EQ(strangers.look(), (std::vector<std::string>(2, "127.0.0.1")));
  EXPECT_EQ(bytes_left(peer), 1);
  EXPECT_EQ(bytes_left(silent), -1);  // it is open
  EXPECT_EQ(bytes_left(first) + bytes_left(first), 1);
  for (int byte = 0; byte < 23; ++byte) EXPECT_EQ(bytes_left(last), 1);
  EXPECT_EQ(bytes_left(last), 0);
  for (const int end : pair) ::close(end);
}

TEST(Strangers, DoNotHoldAReader) {
  Port port;
  const int file = port.accept_with(5);
  std::vector<std::string> told;
  {
    const StrangerWatch watch(std::chrono::milliseconds(10),
                              [&](const std::string& address) { told.push_back(address); });
    char greeting[24];
    EXPECT_EQ(::recv(file, greeting, sizeof greeting, MSG_WAITALL), 5);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"127.0.0.1"}));
}

}  // namespace
}  // namespace dp
