#include "app/bench_layers.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "app/process.hpp"
#include "app/times.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"
#include "net/optimizer.hpp"

namespace dp {

namespace {

namespace po = boost::program_options;

// Images of CIFAR's size and classes.
constexpr net::ModelInput kInput{.image = {.height = 32, .width = 32}, .classes = 10};

struct LayerBenchOptions {
  std::string model = "resnet18", device = "auto", precision = "fp32", tune = "on";
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
      ("device", po::value(&options.device)->default_value(options.device),
       "auto, cpu or cuda")  //
      ("precision", po::value(&options.precision)->default_value(options.precision),
       "fp32, tf32 (GPUs) or bf16")                                                      //
      ("steps", po::value(&options.steps)->default_value(options.steps), "steps timed")  //
      ("autotune", po::value(&options.tune)->default_value(options.tune),
       "on: measure algorithms; off: fixed rule")  //
      ("verbose", po::bool_switch(&options.verbose),
       "also print the device and the algorithm of every layer");
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
  const auto one_of = [](const char* name, const std::string& value,
                         const std::vector<std::string>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      throw_error(ErrorKind::usage, "layers: --{} {}: must be {}", name, value,
                  fmt::join(allowed, " or "));
    }
  };
  one_of("device", options.device, {"auto", "cpu", "cuda"});
  one_of("precision", options.precision, {"fp32", "tf32", "bf16"});
  one_of("autotune", options.tune, {"on", "off"});
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
  comm.together([&] { options = parse(argc, argv); });
  const CpuShare share = take_cpu_share(comm, options.threads);
  comm.together([&] {
    const bool is_gpu = options.device == "cuda" || (options.device == "auto" && count_gpus() > 0);
    if (!is_gpu && options.precision == "tf32") {
      throw_error(ErrorKind::device, "layers: --precision tf32: a CPU has no such arithmetic");
    }
    device = make_device({.kind = is_gpu ? DeviceKind::cuda : DeviceKind::cpu,
                          .threads = share.threads,
                          .tune = options.tune == "on",
                          .index = comm.local_rank(),
                          .allow_tf32 = options.precision == "tf32"});
    const DataType type = options.precision == "bf16" ? DataType::bf16 : DataType::f32;
    if (!device->supports(type)) {
      throw_error(ErrorKind::device, "layers: --precision bf16: {} has no AVX512-BF16",
                  device->description());
    }
    network =
        std::make_unique<net::Network>(*device, net::make_model(options.model, kInput), type, 1);
    if (comm.rank() == 0) prepare();
  });
  std::string choices = device->tuning().export_text();
  comm.broadcast(choices);
  device->tuning().import_text(choices);
  comm.together(prepare);

  const auto batch = static_cast<std::size_t>(options.batch);
  const CounterRng rng(1, RandomStream::test);
  std::vector<float> pixels(batch * kInput.image.values());
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<float>(2.0 * rng.uniform(i) - 1.0);
  }
  std::vector<std::int32_t> label_values(batch);
  for (std::size_t i = 0; i < batch; ++i) {
    label_values[i] = static_cast<std::int32_t>(i % kInput.classes);
  }
  const auto bring = [&](const void* from, std::size_t bytes) {
    Device::Memory memory = device->allocate(bytes);
    device->upload(memory.get(), from, bytes);
    return memory;
  };
  const Device::Memory image_memory = bring(pixels.data(), pixels.size() * sizeof(float));
  const Device::Memory label_memory = bring(label_values.data(), batch * sizeof(std::int32_t));
  const TensorView images = {network->images_desc(batch), image_memory.get()};
  const auto* labels = reinterpret_cast<const std::int32_t*>(label_memory.get());
  net::Parameters& parameters = network->parameters();
  const Device::Memory shared = device->allocate_host(sizeof(LossSums));
  auto* loss = new (shared.get()) LossSums{};
  net::Sgd sgd(*device, parameters, {.weight_decay = 5e-4f});

  enum Mark : std::size_t { kStart, kForward, kBackward, kUpdated, kMarks };
  const std::unique_ptr<TimeMarks> marks = device->make_time_marks(kMarks);
  const std::unique_ptr<Recording> one_step = device->record([&] {
    const TensorView logits = network->forward(images, net::Mode::training);
    softmax_cross_entropy(*device, logits, labels, 0.0f, static_cast<double>(batch),
                          network->logit_gradient(), loss);
    marks->mark(kForward);
    network->backward(images, nullptr);
    marks->mark(kBackward);
  });

  constexpr int kWarmup = 3;
  std::vector<double> forward, backward, optimizer, step;
  for (int s = 0; s < options.steps + kWarmup; ++s) {
    if (s == kWarmup) comm.barrier();
    marks->mark(kStart);
    one_step->replay();
    sgd.step(0.01);
    marks->mark(kUpdated);
    device->synchronize();
    if (s < kWarmup) continue;
    forward.push_back(marks->seconds(kStart, kForward));
    backward.push_back(marks->seconds(kForward, kBackward));
    optimizer.push_back(marks->seconds(kBackward, kUpdated));
    step.push_back(marks->seconds(kStart, kUpdated));
  }
  const double images_per_s = comm.all_sum(static_cast<double>(batch) / median(step));
  if (comm.rank() == 0) {
    if (options.verbose) {
      std::printf("  device: %s\n", device->description().c_str());
      for (const std::string& line : network->algorithms()) std::printf("  %s\n", line.c_str());
    }
    std::printf(
        "dptrain %s batch %d %s %s threads %d ranks %d: %.1f images/s "
        "(rank 0: forward %.1f, backward %.1f, optimizer %.1f ms; peak memory %.0f MB, "
        "activations %.0f MB)\n",
        options.model.c_str(), options.batch, options.precision.c_str(),
        device->kind() == DeviceKind::cuda ? "cuda" : "cpu", device->threads(), comm.size(),
        images_per_s, median(forward) * 1e3, median(backward) * 1e3, median(optimizer) * 1e3,
        static_cast<double>(peak_memory_bytes()) / 1e6,
        static_cast<double>(network->arena_bytes()) / 1e6);
  }
  return 0;
}

}  // namespace dp
