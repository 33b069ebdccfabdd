// dpbench layers --detail: the time of each layer in a training step, and its GFLOP/s as a
// percentage of a fast convolution's on this device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/trace.hpp"
#include "kernels/device.hpp"
#include "net/graph.hpp"

namespace dp {

class LayerDetail {
 public:
  // batch: the images of a step. steps: the number of training steps to measure.
  LayerDetail(const net::Graph& graph, std::size_t batch, std::size_t steps);

  // Receives a slice for the forward and the backward pass of each layer (Network::set_trace).
  [[nodiscard]] TraceTrack& track() { return track_; }
  // Returns the table, one line per layer. First measures the GFLOP/s that the device reaches.
  [[nodiscard]] std::string table(Device& device);

 private:
  struct Row {
    std::string name;
    double forward_flops = 0, backward_flops = 0;  // of a step
    double forward_s = 0, backward_s = 0;          // of all steps
  };

  std::vector<Row> rows_;  // by node; [0] is the images
  double steps_;
  TraceTrack track_;
};

}  // namespace dp
