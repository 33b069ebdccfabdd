#include "app/training/run_device.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "app/process/rank_main.hpp"
#include "app/training/run_setup.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The GPU's waits get a deadline. Ranks of a host take its GPUs in turn (DeviceOptions::index).
void watch_gpu(Run& run) {
  const Communicator& comm = run.comm;
  run.device_watch.emplace(
      run.device->shared_waits(),
      DeviceWatchOptions{
          .gpu = fmt::format("the GPU of rank {} on host {}", comm.rank(), comm.host()),
          .program = "dptrain",
          .timeout_option = std::string(kDptrainNames.option_of(Setting{"timeout"})),
          .timeout_s = run.options.comm_timeout_s});
  const int gpus = std::max(count_gpus(), 1);
  const int others = comm.local_size() - 1 - comm.local_rank() % gpus;
  run.ranks_on_gpu = static_cast<std::size_t>(1 + others / gpus);
}

}  // namespace

DataType activation_type(const Options& options) {
  return options.precision == Options::Precision::bf16 ? DataType::bf16 : DataType::f32;
}

void choose_device(Run& run) {
  if (run.options.sync_bn && run.comm.size() > 1) expect_host_waits();
  DeviceKind kind = DeviceKind::cpu;
  if (run.options.device == Options::Device::cuda) kind = DeviceKind::cuda;
  if (run.options.device == Options::Device::automatic && count_gpus(&run.why_no_gpu) > 0) {
    kind = DeviceKind::cuda;
  }
  if (kind == DeviceKind::cpu && run.options.precision == Options::Precision::tf32) {
    throw_error(ErrorKind::device,
                "--precision tf32: a CPU has no such arithmetic; allowed with --device cpu: fp32, "
                "bf16");
  }
  if (kind == DeviceKind::cpu && run.options.gpu_exchange == Options::GpuExchange::device) {
    throw_error(ErrorKind::usage,
                "--gpu-exchange device: this run computes on a CPU; allowed with it: auto, host");
  }
  run.device = make_device({.kind = kind,
                            .threads = run.share.threads,
                            .tune = run.options.measures_algorithms(),
                            .index = run.comm.local_rank(),
                            .allow_tf32 = run.options.precision == Options::Precision::tf32});
  if (kind == DeviceKind::cuda) watch_gpu(run);
  if (!run.device->supports(activation_type(run.options))) {
    throw_error(ErrorKind::device, "--precision bf16: {} has no AVX512-BF16; allowed here: fp32",
                run.device->description());
  }
}

void agree_on_device(Run& run) {
  const std::string mine = run.device->kind() == DeviceKind::cuda ? "a GPU" : "the CPU";
  const std::vector<std::string> kinds = run.comm.gather(mine),
                                 reasons = run.comm.gather(run.why_no_gpu);
  together(run.comm, kDptrainNames, [&] {
    for (std::size_t r = 1; r < kinds.size(); ++r) {  // only rank 0 has the lists
      if (kinds[r] == kinds[0]) continue;
      const std::size_t without = kinds[0] == "the CPU" ? 0 : r;
      throw_error(ErrorKind::device,
                  "--device auto: rank 0 computes on {}, rank {} on {} (on {}: {}); all ranks of a "
                  "run need the same kind: use --device cpu, or cuda where every host has one",
                  kinds[0], r, kinds[r], run.comm.hosts()[without], reasons[without]);
    }
  });
}

}  // namespace dp
