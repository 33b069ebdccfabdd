// Which network interface is taken, on made-up hosts and on this one.
#include "comm/network_interface.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace dp {
namespace {

constexpr std::uint32_t address(unsigned a, unsigned b, unsigned c, unsigned d) {
  return a << 24 | b << 16 | c << 8 | d;
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
  EXPECT_EQ(describe_network(), "mine0");
  unsetenv("OMPI_MCA_btl_tcp_if_include");
  // Open MPI refuses to be told both.
  setenv("OMPI_MCA_btl_tcp_if_exclude", "lo", 1);
  use_best_interface();
  EXPECT_EQ(std::getenv("OMPI_MCA_btl_tcp_if_include"), nullptr);
  EXPECT_EQ(describe_network(), "the interfaces that Open MPI chooses");
  unsetenv("OMPI_MCA_btl_tcp_if_exclude");
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
    EXPECT_EQ(describe_network().find(std::string(chosen) + ", "), 0u) << describe_network();
  }
  unsetenv("OMPI_MCA_btl_tcp_if_include");
}

}  // namespace
}  // namespace dp
