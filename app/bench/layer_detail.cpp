#include "app/bench/layer_detail.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/base/error.hpp"
#include "kernels/conv2d.hpp"

namespace dp {

namespace {

// Operations per second of a 1x1 convolution of 512 channels, the yardstick of the table.
double fast_flops_per_s(Device& device) {
  constexpr std::size_t kChannels = 512;
  constexpr int kTimes = 6;
  const Shape shape{8, 16, 16, kChannels};
  const TensorDesc desc = {shape, DataType::f32, device.channel_block(kChannels)};
  const auto conv =
      make_conv2d(device, {.x = desc, .y = desc, .kernel = 1, .padding = 0, .is_training = false});
  std::vector<Device::Memory> memory;
  for (const std::size_t bytes :
       {desc.bytes(), kChannels * kChannels * sizeof(float), desc.bytes()}) {
    memory.push_back(device.allocate(bytes));
    device.fill_zero(memory.back().get(), bytes);
  }
  double seconds = 1e9;
  for (int i = 0; i < kTimes; ++i) {
    const auto begin = TraceClock::now();
    conv->forward({desc, memory[0].get()}, reinterpret_cast<const float*>(memory[1].get()),
                  {desc, memory[2].get()});
    seconds = std::min(seconds, std::chrono::duration<double>(TraceClock::now() - begin).count());
  }
  return 2.0 * static_cast<double>(shape.elements()) * kChannels / seconds;
}

// A cell of the table: "-" if the layer has no multiplications to count.
std::string speed(double flops, double seconds, double peak) {
  if (flops == 0 || seconds == 0) return fmt::format("{:>8} {:>6}", "-", "-");
  return fmt::format("{:8.1f} {:5.0f} %", flops / seconds * 1e-9, 100 * flops / seconds / peak);
}

}  // namespace

LayerDetail::LayerDetail(const net::Graph& graph, std::size_t batch, std::size_t steps)
    : steps_(static_cast<double>(steps)) {
  std::vector<Shape> shapes = {graph.images_shape(batch)};
  rows_.push_back({.name = graph.nodes()[0].name});
  for (std::size_t i = 1; i < graph.nodes().size(); ++i) {
    const net::Graph::Node& node = graph.nodes()[i];
    const auto layer = node.make();
    std::vector<Shape> inputs;
    for (const std::size_t input : node.inputs) inputs.push_back(shapes[input]);
    shapes.push_back(layer->output_shape(inputs));
    // Each weight of a kernel or matrix is multiplied once for each pixel of the output, and a
    // multiplication with its addition counts as two operations. Backward needs twice as many
    // operations. The layer that reads the images needs fewer, because nothing needs the gradient
    // of the images.
    double flops = 0;
    for (const net::ParameterSpec& spec : layer->parameters(inputs)) {
      if (spec.shape.size() < 2) continue;
      const double weights =
          std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
      flops += 2 * weights * static_cast<double>(shapes.back().n * shapes.back().pixels());
    }
    const bool reads_images = std::ranges::find(node.inputs, 0u) != node.inputs.end();
    rows_.push_back({.name = node.name,
                     .forward_flops = flops,
                     .backward_flops = (reads_images ? 1 : 2) * flops});
  }
  track_.reserve(2 * rows_.size() * steps);
  track_.set_window(0, steps);
}

std::string LayerDetail::table(Device& device) {
  DP_ASSERT(track_.left_out() == 0, "{} slices", track_.left_out());
  for (const TraceEvent& event : track_.events()) {
    const double seconds = 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
    if (event.kind == TraceKind::layer_forward) rows_[event.id].forward_s += seconds;
    if (event.kind == TraceKind::layer_backward) rows_[event.id].backward_s += seconds;
  }
  const double peak = fast_flops_per_s(device);
  std::size_t width = 5;
  for (const Row& row : rows_) width = std::max(width, row.name.size());
  std::string text = fmt::format(
      "  {:{}}  {:^24}   {:^24}\n  {:{}}  {:>8} {:>8} {:>6}   {:>8} {:>8} {:>6}\n", "", width,
      "forward", "backward", "layer", width, "ms", "GFLOP/s", "", "ms", "GFLOP/s", "");
  const auto line = [&](const Row& row) {
    text += fmt::format(
        "  {:{}}  {:8.2f} {}   {:8.2f} {}\n", row.name, width, 1e3 * row.forward_s / steps_,
        speed(row.forward_flops, row.forward_s / steps_, peak), 1e3 * row.backward_s / steps_,
        speed(row.backward_flops, row.backward_s / steps_, peak));
  };
  Row all{.name = "all layers"};
  for (std::size_t i = 1; i < rows_.size(); ++i) {
    line(rows_[i]);
    all.forward_flops += rows_[i].forward_flops;
    all.backward_flops += rows_[i].backward_flops;
    all.forward_s += rows_[i].forward_s;
    all.backward_s += rows_[i].backward_s;
  }
  line(all);
  return text + fmt::format(
                    "  100 %: a 1x1 convolution of 512 channels, {:.0f} GFLOP/s here. Operations "
                    "are counted as for direct\n"
                    "  convolution; Winograd needs a quarter of the multiplications, so it can "
                    "exceed 100 %.\n",
                    peak * 1e-9);
}

}  // namespace dp
