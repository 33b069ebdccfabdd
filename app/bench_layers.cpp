#include "app/bench_layers.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "app/process.hpp"
#include "app/times.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"

namespace dp {

namespace {

namespace po = boost::program_options;

struct LayerBenchOptions {
  std::string model = "resnet18", precision = "fp32", tune = "on";
  int batch = 128, threads = 0, steps = 8;
  bool verbose = false;
};

LayerBenchOptions parse(int argc, char** argv) {
  LayerBenchOptions options;
  po::options_description table("dpbench layers");
  table.add_options()                                                                      //
      ("model", po::value(&options.model)->default_value(options.model), "model")          //
      ("batch", po::value(&options.batch)->default_value(options.batch), "images a step")  //
      ("threads", po::value(&options.threads)->default_value(options.threads),
       "threads per rank; 0: its share of the cores")  //
      ("precision", po::value(&options.precision)->default_value(options.precision),
       "fp32 or bf16")                                                                   //
      ("steps", po::value(&options.steps)->default_value(options.steps), "steps timed")  //
      ("tune", po::value(&options.tune)->default_value(options.tune),
       "on: measure algorithms; off: fixed rule")  //
      ("verbose", po::bool_switch(&options.verbose), "also print the algorithm of every layer");
  try {
    po::variables_map values;
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    const po::positional_options_description none;
    po::store(
        po::command_line_parser(argc, argv).options(table).positional(none).style(style).run(),
        values);
    po::notify(values);
  } catch (const po::error& error) {
    throw_error(ErrorKind::usage, "layers: {}", error.what());
  }
  const auto range = [](const char* name, int value, int least, int most) {
    if (value < least || value > most) {
      throw_error(ErrorKind::usage, "layers: --{} {}: must be {} to {}", name, value, least, most);
    }
  };
  range("batch", options.batch, 1, 65536);
  range("threads", options.threads, 0, 1024);
  range("steps", options.steps, 1, 100000);
  if (options.precision != "fp32" && options.precision != "bf16") {
    throw_error(ErrorKind::usage, "layers: --precision {}: must be fp32 or bf16",
                options.precision);
  }
  if (options.tune != "on" && options.tune != "off") {
    throw_error(ErrorKind::usage, "layers: --tune {}: must be on or off", options.tune);
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int bench_layers(int argc, char** argv, Communicator& comm) {
  LayerBenchOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<net::Network> network;

  const auto prepare = [&] {
    network->prepare(static_cast<std::size_t>(options.batch), net::Mode::training);
  };
  comm.together([&] {
    options = parse(argc, argv);
    const CpuShare share = take_cpu_share(comm.local_rank(), comm.local_size(), options.threads);
    device = make_device({.threads = share.threads, .tune = options.tune == "on"});
    const DataType type = options.precision == "bf16" ? DataType::bf16 : DataType::f32;
    if (!device->supports(type)) {
      throw_error(ErrorKind::device, "layers: --precision bf16: {} has no AVX512-BF16",
                  device->description());
    }
    network = std::make_unique<net::Network>(*device, net::make_model(options.model, 10), type, 1);
    if (comm.rank() == 0) prepare();
  });
  std::string choices = device->tuning().export_text();
  comm.broadcast(choices);
  device->tuning().import_text(choices);
  comm.together(prepare);

  const auto batch = static_cast<std::size_t>(options.batch);
  const CounterRng rng(1, RandomStream::test);
  const Device::Memory memory = device->allocate(batch * 32 * 32 * 3 * sizeof(float));
  const TensorView images = {TensorDesc::nhwc({batch, 32, 32, 3}), memory.get()};
  for (std::size_t i = 0; i < images.desc.shape.elements(); ++i) {
    images.as<float>()[i] = static_cast<float>(2.0 * rng.uniform(i) - 1.0);
  }
  std::vector<std::int32_t> labels(batch);
  for (std::size_t i = 0; i < batch; ++i) labels[i] = static_cast<std::int32_t>(i % 10);
  net::Parameters& parameters = network->parameters();
  const Device::Memory velocity = device->allocate(parameters.size() * sizeof(float));

  constexpr int kWarmup = 2;
  std::vector<double> forward, backward, optimizer, step;
  for (int s = 0; s < options.steps + kWarmup; ++s) {
    if (s == kWarmup) comm.barrier();
    LapClock clock;
    const TensorView logits = network->forward(images, net::Mode::training);
    static_cast<void>(softmax_cross_entropy(*device, logits, labels, 0.0f,
                                            static_cast<double>(batch), network->logit_gradient()));
    const double forward_s = clock.lap();
    network->backward(images, nullptr);
    const double backward_s = clock.lap();
    sgd_update(*device, parameters.values(), parameters.gradients(),
               {reinterpret_cast<float*>(velocity.get()), parameters.size()},
               {.learning_rate = 0.01f, .weight_decay = 5e-4f});
    const double optimizer_s = clock.lap();
    if (s < kWarmup) continue;
    forward.push_back(forward_s);
    backward.push_back(backward_s);
    optimizer.push_back(optimizer_s);
    step.push_back(forward_s + backward_s + optimizer_s);
  }
  const double images_per_s = comm.all_sum(static_cast<double>(batch) / median(step));
  if (comm.rank() == 0) {
    if (options.verbose) {
      for (const std::string& line : network->algorithms()) std::printf("  %s\n", line.c_str());
    }
    std::printf(
        "dptrain %s batch %d %s threads %d ranks %d: %.1f images/s "
        "(rank 0: forward %.1f, backward %.1f, optimizer %.1f ms; peak memory %.0f MB, "
        "activations %.0f MB)\n",
        options.model.c_str(), options.batch, options.precision.c_str(), device->threads(),
        comm.size(), images_per_s, median(forward) * 1e3, median(backward) * 1e3,
        median(optimizer) * 1e3, static_cast<double>(peak_memory_bytes()) / 1e6,
        static_cast<double>(network->arena_bytes()) / 1e6);
  }
  return 0;
}

}  // namespace dp
