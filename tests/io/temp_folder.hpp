// A test's own folder, which is removed with its contents at the end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace dp {

class TempFolder {
 public:
  // A folder in memory, for tests that sync very often and simulate no loss of power.
  struct InMemory {};
  explicit TempFolder(InMemory)
      : TempFolder(std::filesystem::is_directory("/dev/shm")
                       ? "/dev/shm"
                       : std::filesystem::temp_directory_path()) {}

  TempFolder() : TempFolder(std::filesystem::temp_directory_path()) {}
  explicit TempFolder(const std::filesystem::path& below) {
    static int count = 0;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = below / (std::string("dptrain-") + test->test_suite_name() + "-" + test->name() + "-" +
                     std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  void write(const std::string& name, const std::vector<std::uint8_t>& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream file(path_ / name, std::ios::binary);
    for (const std::uint8_t byte : bytes) file.put(static_cast<char>(byte));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace dp
