#include "app/training/setup/run_device.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "app/process/rank_main.hpp"
#include "app/process/together_on_hosts.hpp"
#include "app/training/setup/agreement.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Sets a deadline for all waits for the GPU, and counts the ranks that use it. The ranks of a host
// are assigned to its GPUs in turn (DeviceOptions::index).
void watch_gpu(const Options& options, const Communicator& comm, RankMachine& machine) {
  machine.watch.emplace(
      machine.device->shared_waits(),
      DeviceWatchOptions{
          .gpu = fmt::format("the GPU of rank {} on host {}", comm.rank(), comm.host()),
          .program = "dptrain",
          .timeout_option = std::string(kDptrainNames.option_of(Setting{"timeout"})),
          .timeout_s = options.comm_timeout_s});
  const int gpus = std::max(count_gpus(), 1);
  const int others = comm.local_size() - 1 - comm.local_rank() % gpus;
  machine.ranks_on_gpu = static_cast<std::size_t>(1 + others / gpus);
}

void choose_device(const Options& options, const Communicator& comm, RankMachine& machine) {
  if (options.sync_bn && comm.size() > 1) expect_host_waits();
  DeviceKind kind = DeviceKind::cpu;
  if (options.device == Options::Device::cuda) kind = DeviceKind::cuda;
  if (options.device == Options::Device::automatic && count_gpus(&machine.why_no_gpu) > 0) {
    kind = DeviceKind::cuda;
  }
  if (kind == DeviceKind::cpu && options.precision == Options::Precision::tf32) {
    throw_error(ErrorKind::device,
                "--precision tf32: not available on a CPU; allowed with --device cpu: fp32, bf16");
  }
  if (kind == DeviceKind::cpu && options.gpu_exchange == Options::GpuExchange::device) {
    throw_error(ErrorKind::usage,
                "--gpu-exchange device: this run computes on a CPU; allowed with it: auto, host");
  }
  machine.device = make_device({.kind = kind,
                                .threads = machine.share.threads,
                                .tune = options.measures_algorithms(),
                                .index = comm.local_rank(),
                                .allow_tf32 = options.precision == Options::Precision::tf32});
  if (kind == DeviceKind::cuda) watch_gpu(options, comm, machine);
  if (!machine.device->supports(activation_type(options))) {
    throw_error(ErrorKind::device, "--precision bf16: {} has no AVX512-BF16; allowed here: fp32",
                machine.device->description());
  }
}

void compare_devices(Communicator& comm, RankMachine& machine) {
  const DeviceKind mine = machine.device->kind();
  const std::vector<DeviceKind> kinds = comm.all_gather(mine);
  machine.has_any_gpu = std::ranges::count(kinds, DeviceKind::cuda) > 0;
  machine.has_any_cpu = std::ranges::count(kinds, DeviceKind::cpu) > 0;
  machine.is_first_of_kind = std::ranges::find(kinds, mine) - kinds.begin() == comm.rank();
}

}  // namespace

DataType activation_type(const Options& options) {
  return options.precision == Options::Precision::bf16 ? DataType::bf16 : DataType::f32;
}

RankMachine::RankMachine(const Options& options, Communicator& comm) {
  comm.set_activity("the choice of devices");
  share = take_cpu_share(comm, checked_cast<int>(options.threads));
  together_on_hosts(comm, [&] { choose_device(options, comm, *this); });
  compare_devices(comm, *this);
  agree_on_processors(comm, options, *device);
}

}  // namespace dp
