// The machine of a rank: its share of the processors, the device that computes, and a watch over a
// GPU's waits.
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
  // Collective. A run trains on one kind of device, because kinds differ in the last bits of their
  // arithmetic. All ranks throw the same AgreedError.
  RankMachine(const Options& options, Communicator& comm);

  CpuShare share;
  std::optional<DeviceWatch> watch;  // of a GPU; sees the waits of its destructor, too
  std::unique_ptr<Device> device;
  std::size_t ranks_on_gpu = 1;  // of this host, on the same GPU as this one
  std::string why_no_gpu;        // if --device auto has found no usable GPU
};

}  // namespace dp
