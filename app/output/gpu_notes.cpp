#include "app/output/gpu_notes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "io/files/text_table.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// "topk", "topk and dgc": the codecs that have no form for GPUs, each once.
std::string host_codecs(const GpuFacts& facts) {
  std::vector<std::string> names;
  if (facts.sends_adams_steps) names.emplace_back("Adam with velocity=");
  for (const CodecSpec& codec : facts.codecs) {
    if (has_codec(codec, DeviceKind::cuda) || std::ranges::count(names, codec.name) > 0) continue;
    names.push_back(codec.name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " and ") + name;
  return text;
}

std::string describe_exchange(const GpuFacts& facts) {
  if (facts.exchange_path == "device") return "encoded and added on the GPU";
  std::string text = "encoded and added by the host's processor";
  const std::string names = host_codecs(facts);
  if (!names.empty()) {
    text += fmt::format(
        ": {} {} no GPU version, and one bucket with such a codec moves all buckets to the host",
        names, names.find(" and ") == std::string::npos ? "has" : "have");
  }
  return text + fmt::format("; {} a step go over the bus in each direction",
                            format_bytes(facts.gradient_bytes));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> gpu_notes(const GpuFacts& facts) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (facts.is_fp32) {
    rows.emplace_back(
        "precision",
        "fp32, which does not use the GPU's tensor cores; --precision bf16 or tf32 is "
        "several times faster");
  }
  if (!facts.exchange_path.empty()) rows.emplace_back("exchange", describe_exchange(facts));
  if (facts.keeps_velocities_off) {
    rows.emplace_back(
        "auto",
        "sends gradients; on CPUs it would send Adam's steps, which learn more from the same bits "
        "but cost a GPU's host more time than the codec (auto:velocity=on sends them anyway)");
  }
  if (facts.ranks_on_gpu > 1) {
    rows.emplace_back(
        "GPU", fmt::format("{} ranks of rank 0's host share one GPU{}", facts.ranks_on_gpu,
                           facts.has_mps ? " through NVIDIA's MPS"
                                         : " and take turns; with NVIDIA's MPS "
                                           "(nvidia-cuda-mps-control -d) they compute at the same "
                                           "time"));
  }
  return rows;
}

bool has_mps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::filesystem::path pipes = folder != nullptr ? folder : "/tmp/nvidia-mps";
  // The pipe of a server that has ended stays, but has no reader (ENXIO).
  const int pipe = ::open((pipes / "control").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (pipe < 0) return false;
  struct stat status {};
  const bool is_pipe = ::fstat(pipe, &status) == 0 && S_ISFIFO(status.st_mode);
  ::close(pipe);
  return is_pipe;
}

}  // namespace dp
