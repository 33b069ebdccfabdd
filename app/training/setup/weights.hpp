// Loads weights from a file before the first step (--init), and writes them into a file after each
// epoch (--export).
#pragma once

#include <cstddef>
#include <string>

#include "app/options/options.hpp"
#include "comm/mpi/communicator.hpp"
#include "io/files/weights_file.hpp"
#include "kernels/device.hpp"
#include "net/network.hpp"

namespace dp {

// All tensors of the network as evaluation uses them, in torch's order.
[[nodiscard]] WeightSet collect_weights(Device& device, net::Network& network);

// Sets every tensor of the network, for training and evaluation, from the file's tensor of the same
// name. Tensors whose names match a pattern of --init-except (with * and ?) keep their values.
// Throws SettingError(data) if the file has no such tensor or one of another shape, or if a pattern
// matches no tensor.
void apply_weights(const WeightsFile& weights, const Options& options, Device& device,
                   net::Network& network);

// Collective: rank 0 reads the file of --init, and all ranks get its weights.
void load_initial_weights(const Options& options, Communicator& comm, Device& device,
                          net::Network& network);

// Keeps the weights of the best epoch, and writes the file of --export after each epoch. Only rank
// 0 has an exporter.
class WeightsExporter {
 public:
  // The treatment of a file that already exists. refused: it is an error. continued: the resumed
  // run wrote the file, and continues it. moved: the run begins anew, and the existing file gets
  // another name.
  enum class Earlier { refused, continued, moved };
  // Throws SettingError(data) if the file cannot be made, unless the run continues an earlier one.
  WeightsExporter(std::string path, WeightsFile head, Earlier earlier = Earlier::refused);

  // `after_epoch` has the epoch and its results. Throws Error(data); the file is then unchanged.
  void write(WeightSet after_epoch);

  // A message if the run's earlier file can no longer be read, otherwise empty.
  [[nodiscard]] const std::string& warning() const { return warning_; }

 private:
  void take_earlier();

  std::string path_, warning_;
  WeightsFile file_;
  WeightSet best_;
  bool has_best_ = false, is_written_ = false;
};

}  // namespace dp
