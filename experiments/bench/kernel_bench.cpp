// The memory-bound operations of a step, one by one, on one thread: GB/s of tensor data touched
// (each tensor counted once a sweep), to be held against what the memory or the cache can do.
//
//   build/bin/dpbench_kernels --benchmark_filter=BatchNorm
#include <benchmark/benchmark.h>

#include <vector>

#include "io/images/augment.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/sgd.hpp"

namespace dp {
namespace {

// A tensor of pseudo-random numbers.
struct Tensor {
  Tensor(Device& device, const TensorDesc& desc) : memory(device.allocate(desc.bytes())) {
    view = {desc, memory.get()};
    if (desc.type != DataType::f32) return;
    for (std::size_t i = 0; i < desc.shape.elements(); ++i) {
      view.as<float>()[i] = static_cast<float>(i * 2654435761u % 2001) * 1e-3f - 1.0f;
    }
  }
  Device::Memory memory;
  TensorView view;
};

void count_bytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

// Activations of a ResNet stage for a batch of 32: pixels on a side, channels.
TensorDesc stage(const Device& device, const benchmark::State& state, DataType type) {
  const auto side = static_cast<std::size_t>(state.range(0));
  const auto channels = static_cast<std::size_t>(state.range(1));
  return {{32, side, side, channels}, type, device.channel_block(channels)};
}

void BM_BatchNormForward(benchmark::State& state) {
  const auto device = make_device({});
  const TensorDesc desc = stage(*device, state, DataType::f32);
  const auto norm = make_batch_norm(*device, {.x = desc, .has_relu = true, .has_addend = true});
  Tensor x(*device, desc), addend(*device, desc), y(*device, desc);
  std::vector<float> c(desc.shape.c, 1.0f), mean(c), var(c);
  for (auto _ : state) {
    norm->forward_training(x.view, addend.view, {c.data(), c.data(), mean.data(), var.data()},
                           y.view);
  }
  count_bytes(state, 4 * desc.bytes());  // x twice, addend, y
}
BENCHMARK(BM_BatchNormForward)->Args({32, 64})->Args({16, 128})->Args({32, 16});

void BM_BatchNormBackward(benchmark::State& state) {
  const auto device = make_device({});
  const TensorDesc desc = stage(*device, state, DataType::f32);
  const auto norm = make_batch_norm(*device, {.x = desc, .has_relu = true, .has_addend = true});
  Tensor x(*device, desc), y(*device, desc), dy(*device, desc), dx(*device, desc),
      d_addend(*device, desc);
  std::vector<float> c(desc.shape.c, 1.0f), a(c), b(c);
  const BatchNorm::Parameters parameters = {c.data(), c.data(), a.data(), b.data()};
  norm->forward_training(x.view, dy.view, parameters, y.view);
  for (auto _ : state) {
    norm->backward(x.view, y.view, parameters,
                   {.dy = dy.view,
                    .dy2 = {},
                    .dx = dx.view,
                    .d_addend = d_addend.view,
                    .d_gamma = a.data(),
                    .d_beta = b.data()});
  }
  count_bytes(state, 7 * desc.bytes());  // x twice, y, dy; d_addend written and read; dx
}
BENCHMARK(BM_BatchNormBackward)->Args({32, 64})->Args({16, 128})->Args({32, 16});

void BM_SgdUpdate(benchmark::State& state) {
  const auto device = make_device({});
  const auto size = static_cast<std::size_t>(state.range(0));
  std::vector<float> w(size, 0.5f), g(size, 0.01f), v(size);
  const SgdStep step = {.learning_rate = 1e-6f};
  for (auto _ : state) sgd_update(*device, w, g, v, &step, nullptr);
  count_bytes(state, 5 * 4 * size);  // three read, two written
}
BENCHMARK(BM_SgdUpdate)->Arg(1 << 16)->Arg(11173962);

void BM_Augment(benchmark::State& state) {
  constexpr ImageShape kImage{.height = 32, .width = 32};
  const Normalizer normalizer(kImage);
  std::vector<std::uint8_t> image(kImage.values(), 100);
  std::vector<float> out(kImage.values());
  std::size_t i = 0;
  for (auto _ : state) normalizer.apply(image, draw_augmentation({}, kImage, 1, 1, i++), out);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Augment);

// Segments of 256 KiB with error feedback, as the ring sends them; bytes of float.
void BM_Encode(benchmark::State& state, const char* spec) {
  const auto codec = make_codec(parse_codec_spec(spec));
  const std::size_t size = 65536;
  std::vector<float> values(size), residual(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>(i * 2654435761u % 2001) * 1e-6f - 1e-3f;
  }
  std::vector<std::byte> payload(codec->max_payload_bytes(size));
  float* feedback = codec->spec().feedback ? residual.data() : nullptr;
  for (auto _ : state) {
    benchmark::DoNotOptimize(codec->encode(values, feedback, payload, {}));
  }
  count_bytes(state, 4 * size);
}
void BM_DecodeAdd(benchmark::State& state, const char* spec) {
  const auto codec = make_codec(parse_codec_spec(spec));
  const std::size_t size = 65536;
  std::vector<float> values(size, 1e-3f), out(size);
  std::vector<std::byte> payload(codec->max_payload_bytes(size));
  payload.resize(codec->encode(values, nullptr, payload, {}).payload_bytes);
  for (auto _ : state) codec->decode_add(payload, out);
  count_bytes(state, 4 * size);
}
#define DP_BENCH_CODEC(name)                 \
  BENCHMARK_CAPTURE(BM_Encode, name, #name); \
  BENCHMARK_CAPTURE(BM_DecodeAdd, name, #name)
DP_BENCH_CODEC(none);
DP_BENCH_CODEC(fp16);
DP_BENCH_CODEC(q16);
DP_BENCH_CODEC(q8);
DP_BENCH_CODEC(q4);

}  // namespace
}  // namespace dp
