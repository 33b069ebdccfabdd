// Text files of options: files, folders, devices and pipes.
#include "app/options/text_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

class TextFile : public testing::Test {
 protected:
  TextFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("dp_text_file." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~TextFile() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const char* name) const { return folder_ / name; }
  [[nodiscard]] std::string pipe() const {
    EXPECT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    return path("pipe");
  }
  static std::string read(const std::string& file, const PipePatience& patience = {}) {
    return read_text_file("--file", file, 10'000, "a text", patience);
  }
  static std::string refusal(const std::string& file, const PipePatience& patience = {}) {
    try {
      return "no error but: " + read(file, patience);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
  }

  std::filesystem::path folder_;
};

TEST_F(TextFile, IsReadWhole) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{5000}, std::size_t{10'000}}) {
    std::ofstream(path("a")) << std::string(size, 'x');
    EXPECT_EQ(read(path("a")).size(), size);
  }
}

TEST_F(TextFile, RefusesWhatIsNone) {
  EXPECT_EQ(refusal("no/such"), "--file no/such: cannot be read: No such file or directory");
  EXPECT_EQ(refusal("/"), "--file /: is a folder; must be the path of a file");
  EXPECT_EQ(refusal("/dev/zero"), "--file /dev/zero: is longer than 10000 bytes; is it a text?");
  std::ofstream(path("a")) << std::string(10'001, 'x');
  EXPECT_NE(refusal(path("a")).find("is longer than 10000 bytes"), std::string::npos);
}

// In pieces, with pauses, and more than a pipe holds.
TEST_F(TextFile, ReadsAPipeToItsEnd) {
  const std::string name = pipe();
  std::thread writer([&] {
    std::ofstream file(name);
    for (int i = 0; i < 9; ++i) {
      file << std::string(1000, static_cast<char>('a' + i)) << std::flush;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  });
  const std::string text = read(name);
  writer.join();
  EXPECT_EQ(text.size(), 9000u);
  EXPECT_EQ(text.back(), 'i');
}

TEST_F(TextFile, EndsWithAWriterThatWritesNothing) {
  const std::string name = pipe();
  std::thread writer([&] { std::ofstream file(name); });
  EXPECT_EQ(read(name, {.without_writer_s = 1e6}), "");
  writer.join();
}

TEST_F(TextFile, DoesNotWaitForeverForAPipe) {
  const std::string name = pipe();
  const PipePatience brief = {.without_writer_s = 0.2, .silent_s = 0.4};
  EXPECT_EQ(refusal(name, brief),
            "--file " + name + ": is a pipe that no program has opened for writing in 0.2 s");
  std::ofstream file;
  std::thread writer([&] {
    file.open(name);
    file << "a" << std::flush;
  });
  EXPECT_EQ(refusal(name, {.without_writer_s = 1e6, .silent_s = 0.4}),
            "--file " + name + ": is a pipe whose writer has been silent for 0.4 s");
  writer.join();
}

}  // namespace
}  // namespace dp
