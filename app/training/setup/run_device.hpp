// The machine of a rank: its share of the processors, the device that computes, and a watchdog for
// waits for a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "app/options/options.hpp"
#include "app/process/device_watch.hpp"
#include "app/process/process.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

[[nodiscard]] DataType activation_type(const Options& options);

struct RankMachine {
  // Collective. Ranks may compute on different kinds of devices: gradients differ in their last
  // bits, but all ranks use the same sums, and updates of the weights give the same bits on CPUs
  // and GPUs. All ranks throw the same AgreedError.
  RankMachine(const Options& options, Communicator& comm);

  CpuShare share;
  std::optional<DeviceWatch> watch;  // of a GPU; outlives `device`, whose destructor may wait
  std::unique_ptr<Device> device;
  std::size_t ranks_on_gpu = 1;                   // ranks that use this rank's GPU, with itself
  std::string why_no_gpu;                         // if --device auto has found no usable GPU
  bool has_any_gpu = false, has_any_cpu = false;  // whether some rank computes on such a device
  bool is_first_of_kind = false;                  // this rank measures algorithms for its kind
};

}  // namespace dp
