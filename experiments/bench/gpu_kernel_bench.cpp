// The memory-bound operations of a step on a GPU: GB/s of tensor data touched (each tensor counted
// once a sweep), to be held against Copy, which is what the device's memory can do. Sizes are those
// of ResNet-18 with 512 images of CIFAR. Times are the device's own, of recordings of ten calls.
//
//   build/bin/dpbench_kernels --benchmark_filter=Gpu
//
// Without a GPU nothing is registered here.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "io/images/augment.hpp"
#include "kernels/augment.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/sgd.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp {
namespace {

struct Tensor {
  Tensor(Device& device, const TensorDesc& desc)
      : memory(device.allocate(desc.bytes())), view{desc, memory.get()} {}
  [[nodiscard]] std::span<float> span() const {
    return {view.as<float>(), view.desc.shape.elements()};
  }

  Device::Memory memory;
  TensorView view;
};

Tensor floats(Device& device, std::size_t count) {
  return {device, TensorDesc::nhwc({count, 1, 1, 1})};
}

// Times recordings of ten calls of `operation`, which touches so many bytes.
void measure(benchmark::State& state, Device& device, std::size_t bytes,
             const std::function<void()>& operation) {
  constexpr int kCalls = 10;
  const auto recording = device.record([&] {
    for (int i = 0; i < kCalls; ++i) operation();
  });
  for (int i = 0; i < 3; ++i) recording->replay();  // calls, captures, warms up
  const auto marks = device.make_time_marks(2);
  for (auto _ : state) {
    marks->mark(0);
    recording->replay();
    marks->mark(1);
    device.synchronize();
    state.SetIterationTime(marks->seconds(0, 1) / kCalls);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

TensorDesc stage(const benchmark::State& state, DataType type) {
  const auto side = static_cast<std::size_t>(state.range(0));
  return TensorDesc::nhwc({512, side, side, static_cast<std::size_t>(state.range(1))}, type);
}

struct NormMemory {
  NormMemory(Device& device, std::size_t channels)
      : gamma(floats(device, channels)),
        beta(floats(device, channels)),
        mean(floats(device, channels)),
        var(floats(device, channels)),
        d_gamma(floats(device, channels)),
        d_beta(floats(device, channels)) {}
  [[nodiscard]] BatchNorm::Parameters parameters() const {
    return {gamma.view.as<float>(), beta.view.as<float>(), mean.view.as<float>(),
            var.view.as<float>()};
  }
  Tensor gamma, beta, mean, var, d_gamma, d_beta;
};

// has_addend: the second one of a residual block, whose output's gradient also comes in two parts.
void batch_norm(benchmark::State& state, DataType type, bool has_addend, bool is_backward) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const TensorDesc desc = stage(state, type);
  const auto norm =
      make_batch_norm(*device, {.x = desc, .has_relu = true, .has_addend = has_addend});
  const NormMemory memory(*device, desc.shape.c);
  const Tensor x(*device, desc), other(*device, desc), y(*device, desc), dy(*device, desc),
      dx(*device, desc);
  const TensorView addend = has_addend ? other.view : TensorView{};
  if (!is_backward) {
    measure(state, *device, (has_addend ? 4 : 3) * desc.bytes(),
            [&] { norm->forward_training(x.view, addend, memory.parameters(), y.view); });
    return;
  }
  norm->forward_training(x.view, addend, memory.parameters(), y.view);
  // The second gradient is where the addend's goes, as in a network.
  measure(state, *device, (has_addend ? 8 : 5) * desc.bytes(), [&] {
    norm->backward(x.view, y.view, memory.parameters(),
                   {.dy = dy.view,
                    .dy2 = addend,
                    .dx = dx.view,
                    .d_addend = addend,
                    .d_gamma = memory.d_gamma.view.as<float>(),
                    .d_beta = memory.d_beta.view.as<float>()});
  });
}

void copy_tensor(benchmark::State& state, DataType type) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const TensorDesc desc = stage(state, type);
  const Tensor x(*device, desc), y(*device, desc);
  measure(state, *device, 2 * desc.bytes(), [&] { copy(*device, x.view, y.view); });
}

void add_tensors(benchmark::State& state, DataType type) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const TensorDesc desc = stage(state, type);
  const Tensor a(*device, desc), b(*device, desc), y(*device, desc);
  measure(state, *device, 3 * desc.bytes(), [&] { add(*device, a.view, b.view, y.view); });
}

void update(benchmark::State& state) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto count = static_cast<std::size_t>(state.range(0));
  const Tensor w = floats(*device, count), g = floats(*device, count), v = floats(*device, count);
  const Device::Memory step = device->allocate_host(sizeof(SgdStep));
  const auto* settings = new (step.get()) SgdStep();
  measure(state, *device, 5 * 4 * count,  // three read, two written
          [&] { sgd_update(*device, w.span(), g.span(), v.span(), settings, nullptr); });
}

void squares(benchmark::State& state) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto count = static_cast<std::size_t>(state.range(0));
  const Tensor g = floats(*device, count);
  const Device::Memory sum = device->allocate_host(sizeof(double));
  measure(state, *device, 4 * count,
          [&] { sum_of_squares(*device, g.span(), reinterpret_cast<double*>(sum.get())); });
}

void augment(benchmark::State& state) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto count = static_cast<std::size_t>(state.range(0));
  constexpr ImageShape kImage{.height = 32, .width = 32};
  const Device::Memory images = device->allocate(count * kImage.values());
  const Device::Memory crops = device->allocate(count * sizeof(ImageCrop));
  const Device::Memory table = device->allocate(sizeof(PixelTable));
  const Tensor y(*device, TensorDesc::nhwc({count, kImage.height, kImage.width, kImage.channels}));
  measure(state, *device, 5 * count * kImage.values(), [&] {  // a byte read, a float written
    augment_images(*device, reinterpret_cast<const std::uint8_t*>(images.get()),
                   reinterpret_cast<const ImageCrop*>(crops.get()),
                   reinterpret_cast<const PixelTable*>(table.get()), y.view);
  });
}

void loss(benchmark::State& state) {
  const auto device = make_device({.kind = DeviceKind::cuda});
  const auto classes = static_cast<std::size_t>(state.range(0));
  const Tensor logits(*device, TensorDesc::nhwc({512, 1, 1, classes}));
  const Tensor gradient(*device, logits.view.desc);
  const Device::Memory labels = device->allocate(512 * sizeof(std::int32_t));
  const Device::Memory sums = device->allocate_host(sizeof(LossSums));
  measure(state, *device, 2 * logits.view.desc.bytes(), [&] {
    softmax_cross_entropy(*device, logits.view, reinterpret_cast<const std::int32_t*>(labels.get()),
                          0.1f, 512.0, gradient.view, reinterpret_cast<LossSums*>(sums.get()));
  });
}

benchmark::internal::Benchmark* add_benchmark(const std::string& name,
                                              const std::function<void(benchmark::State&)>& body) {
  return benchmark::RegisterBenchmark(("Gpu" + name).c_str(), body)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

[[maybe_unused]] const bool kIsRegistered = [] {
  if (count_gpus() == 0) return false;
  const auto stages = [](benchmark::internal::Benchmark* b) {
    b->Args({32, 64})->Args({16, 128})->Args({8, 256})->Args({4, 512})->Args({32, 16});
  };
  for (const DataType type : {DataType::bf16, DataType::f32}) {
    const std::string suffix = std::string("/") + name_of(type);
    stages(add_benchmark("Copy" + suffix, [=](auto& state) { copy_tensor(state, type); }));
    stages(add_benchmark("Add" + suffix, [=](auto& state) { add_tensors(state, type); }));
    for (const bool has_addend : {false, true}) {
      const std::string form = suffix + (has_addend ? "/addend" : "");
      stages(add_benchmark("BatchNormForward" + form,
                           [=](auto& state) { batch_norm(state, type, has_addend, false); }));
      stages(add_benchmark("BatchNormBackward" + form,
                           [=](auto& state) { batch_norm(state, type, has_addend, true); }));
    }
  }
  add_benchmark("SgdUpdate", update)->Arg(269722)->Arg(11173962);
  add_benchmark("SumOfSquares", squares)->Arg(269722)->Arg(11173962);
  add_benchmark("Augment", augment)->Arg(512)->Arg(8192);
  add_benchmark("SoftmaxCrossEntropy", loss)->Arg(10)->Arg(1000);
  return true;
}();

}  // namespace
}  // namespace dp
