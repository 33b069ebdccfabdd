#include "app/output/gpu_notes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace dp {
namespace {

std::map<std::string, std::string> notes(const GpuFacts& facts) {
  std::map<std::string, std::string> by_word;
  for (const auto& [word, text] : gpu_notes(facts)) by_word[word] = text;
  return by_word;
}

std::vector<CodecSpec> codecs(const std::vector<std::string>& texts) {
  std::vector<CodecSpec> specs;
  for (const std::string& text : texts) specs.push_back(parse_codec_spec(text));
  return specs;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(GpuNotes, NothingToSay) {
  EXPECT_TRUE(gpu_notes({}).empty());
  const auto said = notes({.exchange_path = "device", .codecs = codecs({"q8", "none"})});
  EXPECT_EQ(said.size(), 1u);
  EXPECT_EQ(said.at("exchange"), "encoded and added on the GPU");
}

TEST(GpuNotes, TensorCores) {
  EXPECT_TRUE(holds(notes({.is_fp32 = true}).at("precision"), "--precision bf16 or tf32"));
}

TEST(GpuNotes, ACodecWithoutAForm) {
  GpuFacts facts = {.exchange_path = "host",
                    .codecs = codecs({"none", "topk:ratio=0.01", "topk:ratio=0.02", "q8"}),
                    .gradient_bytes = 44.7e6};
  EXPECT_EQ(
      notes(facts).at("exchange"),
      "encoded and added by the host's processor: topk has no GPU version, and one bucket with "
      "such a codec moves all buckets to the host; 44.7 MB a step go over the bus in each "
      "direction");
  facts.codecs.push_back(parse_codec_spec("ecq:bits=0.2"));  // has one
  facts.codecs.push_back(parse_codec_spec("q2"));
  EXPECT_TRUE(holds(notes(facts).at("exchange"), "topk and q2 have no GPU version"));
  facts.codecs = codecs({"ecq:bits=0.2"});
  facts.sends_adams_steps = true;
  EXPECT_TRUE(holds(notes(facts).at("exchange"), "Adam with velocity= has no GPU version"));
  facts.sends_adams_steps = false;
  // Where the measurement or an option has chosen the host.
  facts.codecs = codecs({"q8"});
  EXPECT_EQ(notes(facts).at("exchange"),
            "encoded and added by the host's processor; 44.7 MB a step go over the bus in each "
            "direction");
}

TEST(GpuNotes, AutoWithoutVelocities) {
  EXPECT_TRUE(holds(notes({.keeps_velocities_off = true}).at("auto"), "auto:velocity=on"));
}

TEST(GpuNotes, RanksThatShareAGpu) {
  EXPECT_EQ(notes({.ranks_on_gpu = 4}).at("GPU"),
            "4 ranks of rank 0's host share one GPU and take turns; with NVIDIA's MPS "
            "(nvidia-cuda-mps-control -d) they compute at the same time");
  EXPECT_EQ(notes({.ranks_on_gpu = 4, .has_mps = true}).at("GPU"),
            "4 ranks of rank 0's host share one GPU through NVIDIA's MPS");
}

// The pipe of a server that was killed stays where it was.
TEST(GpuNotes, AServerIsOneThatReadsItsPipe) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("dp_mps." + std::to_string(::getpid()));
  const std::string pipe = folder / "control";
  std::filesystem::create_directories(folder);
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", folder.c_str(), 1);
  EXPECT_FALSE(has_mps());
  std::ofstream{pipe};
  EXPECT_FALSE(has_mps());
  std::filesystem::remove(pipe);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(has_mps());
  const int server = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(server, 0);
  EXPECT_TRUE(has_mps());
  ::close(server);
  EXPECT_FALSE(has_mps());
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace dp
