// Which network interface is taken, on made-up hosts and on this one.
#include "comm/network_interface.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

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
  EXPECT_EQ(describe_network(rate_text), "the interfaces that Open MPI chooses");
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

}  // namespace
}  // namespace dp
