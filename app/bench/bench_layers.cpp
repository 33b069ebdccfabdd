#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "app/bench/bench_options.hpp"
#include "app/bench/benches.hpp"
#include "app/bench/layer_detail.hpp"
#include "app/options/options.hpp"
#include "app/output/times.hpp"
#include "app/process/process.hpp"
#include "app/process/rank_main.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/models/registry.hpp"
#include "net/network.hpp"
#include "net/optimizer.hpp"

namespace dp {

namespace {

struct LayerBenchOptions {
  std::string model = "resnet18";
  std::int64_t batch = 128, threads = 0, steps = 8;
  std::int64_t image_size = 32, classes = 10;  // CIFAR's
  Options::Device device = Options::Device::automatic;
  Options::Precision precision = Options::Precision::fp32;
  bool autotune = true, verbose = false, detail = false;
};

const std::vector<std::string> kPrecisions = {"fp32", "tf32", "bf16"};

BenchUsage usage(LayerBenchOptions& options) {
  return {.name = "layers",
          .other_words = "",
          .help =
              "Measures the training speed of the network alone in images/s, without data and\n"
              "exchange. All ranks compute at the same time; prints the sum.\n",
          .rows = {
              name_row("model", options.model, "model", net::model_names(), "the network to train"),
              whole_row("image-size", options.image_size, {1, 4096},
                        "height and width of the images; ImageNet's are 224 (Inception v4: 299)"),
              whole_row("classes", options.classes, {2, 1000000}, "number of classes"),
              whole_row("batch", options.batch, {1, 65536}, "images per rank and step"),
              whole_row("threads", options.threads, {0, 1024},
                        "compute threads per rank; 0: its share of the cores"),
              choice_row("device", options.device, {"auto", "cpu", "cuda"},
                         "the device; auto: a GPU if there is one"),
              choice_row("precision", options.precision, kPrecisions,
                         "arithmetic of the layers; tf32 is for GPUs only"),
              whole_row("steps", options.steps, {1, 100000}, "timed steps"),
              on_off_row("autotune", options.autotune,
                         "how algorithms are chosen; on: by measurement; off: by a fixed rule"),
              flag_row("verbose", options.verbose,
                       "also print the device and the algorithm of every layer"),
              flag_row("detail", options.detail,
                       "also print each layer's time and speed on rank 0 (CPUs only)")}};
}

}  // namespace

std::string bench_layers_help() {
  LayerBenchOptions options;
  return bench_help(usage(options));
}

void bench_layers(const std::vector<std::string>& arguments, Communicator& comm) {
  LayerBenchOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<net::Network> network;
  std::unique_ptr<LayerDetail> detail;  // null without --detail

  const auto prepare = [&] {
    network->prepare(static_cast<std::size_t>(options.batch), net::Mode::training);
  };
  static_cast<void>(read_bench_options(usage(options), arguments, comm));
  const auto size = static_cast<std::size_t>(options.image_size);
  const net::ModelInput input = {.image = {.height = size, .width = size},
                                 .classes = static_cast<std::size_t>(options.classes)};
  const CpuShare share = take_cpu_share(comm, checked_cast<int>(options.threads));
  const std::string& precision = kPrecisions[static_cast<std::size_t>(options.precision)];
  together(comm, kDpbenchNames, [&] {
    const bool is_gpu = options.device == Options::Device::cuda ||
                        (options.device == Options::Device::automatic && count_gpus() > 0);
    const bool has_tf32 = options.precision == Options::Precision::tf32;
    if (!is_gpu && has_tf32) {
      throw_error(ErrorKind::device,
                  "--precision tf32: not available on a CPU; allowed with --device cpu: fp32, "
                  "bf16");
    }
    device = make_device({.kind = is_gpu ? DeviceKind::cuda : DeviceKind::cpu,
                          .threads = share.threads,
                          .tune = options.autotune,
                          .index = comm.local_rank(),
                          .allow_tf32 = has_tf32});
    const DataType type =
        options.precision == Options::Precision::bf16 ? DataType::bf16 : DataType::f32;
    if (!device->supports(type)) {
      throw_error(ErrorKind::device, "--precision bf16: {} has no AVX512-BF16; allowed here: fp32",
                  device->description());
    }
    if (is_gpu && options.detail) {
      throw_error(ErrorKind::device,
                  "--detail: only with --device cpu; a GPU's layers are not timed");
    }
    net::Graph graph = net::make_model(options.model, input);
    if (options.detail) {
      detail = std::make_unique<LayerDetail>(graph, static_cast<std::size_t>(options.batch),
                                             static_cast<std::size_t>(options.steps));
    }
    network = std::make_unique<net::Network>(*device, std::move(graph), type, 1);
    if (detail) network->set_trace(&detail->track());
    if (comm.rank() == 0) prepare();
  });
  std::string choices = device->tuning().export_text();
  comm.broadcast(choices);
  device->tuning().import_text(choices);
  together(comm, kDpbenchNames, prepare);

  const auto batch = static_cast<std::size_t>(options.batch);
  const CounterRng rng(1, RandomStream::test);
  std::vector<float> pixels(batch * input.image.values());
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<float>(2.0 * rng.uniform(i) - 1.0);
  }
  std::vector<std::int32_t> label_values(batch);
  for (std::size_t i = 0; i < batch; ++i) {
    label_values[i] = static_cast<std::int32_t>(i % input.classes);
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
  const auto sgd = net::make_optimizer(*device, parameters, {.weight_decay = 5e-4f});

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
    if (detail && s >= kWarmup) detail->track().begin_step(static_cast<std::uint64_t>(s - kWarmup));
    marks->mark(kStart);
    one_step->replay();
    sgd->step(0.01);
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
    const double peak_mb = static_cast<double>(peak_memory_bytes()) / 1e6;
    if (detail) std::fputs(detail->table(*device).c_str(), stdout);
    std::printf(
        "dptrain %s batch %zu %s %s threads %d ranks %d: %.1f images/s "
        "(rank 0: forward %.1f, backward %.1f, optimizer %.1f ms; peak memory %.0f MB, "
        "activations %.0f MB)\n",
        options.model.c_str(), batch, precision.c_str(),
        device->kind() == DeviceKind::cuda ? "cuda" : "cpu", device->threads(), comm.size(),
        images_per_s, median(forward) * 1e3, median(backward) * 1e3, median(optimizer) * 1e3,
        peak_mb, static_cast<double>(network->arena_bytes()) / 1e6);
  }
}

}  // namespace dp
