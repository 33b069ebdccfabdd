// Tests batch normalisation on a device against the reference in double: all four forms, one or two
// gradients, every aliasing that the contract allows, shapes, types, memory layouts; and the same
// bits for 1 and 2 threads.
#include "kernels/batch_norm.hpp"

#include <barrier>
#include <thread>

#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/reference/batch_norm.hpp"

namespace dp::test {
namespace {

// Ranks wait for each other in host functions here, so this runs before the program's first CUDA
// call.
const bool kExpectsHostWaits = (expect_host_waits(), true);

struct NormCase {
  Shape shape;
  std::size_t block;
  DataType type = DataType::f32;
  int threads = 1;
};

void PrintTo(const NormCase& c, std::ostream* out) {
  *out << to_string(TensorDesc{c.shape, c.type, c.block}) << ", " << c.threads << " threads";
}

// The tensors that backward's outputs share memory with.
enum class Alias { none, dx_is_dy, addend_is_dy, crossed };

class BatchNormTwin : public testing::TestWithParam<NormCase> {};

// All bytes written by one forward and backward pass.
using Bits = std::vector<std::vector<std::byte>>;

Bits check(const NormCase& c, bool has_relu, bool has_addend, bool has_two, Alias alias) {
  const auto device = make_test_device({.threads = c.threads, .tune = false});
  const TensorDesc desc{c.shape, c.type, c.block};
  const auto norm =
      make_batch_norm(*device, {.x = desc, .has_relu = has_relu, .has_addend = has_addend});
  const std::size_t count = c.shape.elements(), channels = c.shape.c;
  reference::BatchNorm<double> twin{.rows = c.shape.n * c.shape.pixels(),
                                    .channels = channels,
                                    .has_relu = has_relu,
                                    .has_addend = has_addend};

  Doubles x = random_values(count, 1, c.type);
  // A mean far from zero in fp32: a variance made from sums of squares would cancel.
  if (c.type == DataType::f32) {
    for (double& v : x) v = static_cast<double>(static_cast<float>(v + 30.0));
  }
  const Doubles addend = random_values(count, 2, c.type);
  const Doubles dy = random_values(count, 3, c.type), dy2 = random_values(count, 4, c.type);
  Doubles gamma = random_values(channels, 5), beta = random_values(channels, 6);
  for (double& g : gamma) g += g < 0 ? -0.5 : 0.5;
  const Doubles mean = random_values(channels, 7);
  Doubles variance = random_values(channels, 8);
  for (double& v : variance) v = static_cast<double>(static_cast<float>(v + 1.5));
  for (double& v : gamma) v = static_cast<double>(static_cast<float>(v));

  Doubles y(count), running_mean = mean, running_var = variance;
  twin.forward_training(x.data(), addend.data(), gamma.data(), beta.data(), running_mean.data(),
                        running_var.data(), y.data());
  Doubles total = dy;
  for (std::size_t i = 0; i < count && has_two; ++i) total[i] += dy2[i];
  Doubles dx(count), d_addend(count), d_gamma(channels), d_beta(channels);
  twin.backward(x.data(), y.data(), total.data(), gamma.data(), dx.data(), d_addend.data(),
                d_gamma.data(), d_beta.data());

  // fp32: y = x * scale + shift, whose two terms are about 30 / 0.58 = 50 here. Three roundings of
  // up to 50 * 2^-24 make 1e-5, in values whose root mean square goes down to a half. x - mean in
  // backward has smaller errors, but the rounding of the mean, 1e-6, is the same for all terms of
  // d_gamma. bf16: up to two roundings (dx is made from the stored d_addend), 2^-9 each, of values
  // up to 4 times the root mean square, with scales that differ by 2 between channels.
  const double allowed = c.type == DataType::f32 ? 4e-5 : 3e-2;
  const double allowed_parameters = c.type == DataType::f32 ? 5e-5 : 1e-4;

  GuardedTensor t_x(desc, x), t_addend(desc, addend), t_y(desc), t_dy(desc, dy), t_dy2(desc, dy2),
      t_dx(desc), t_d_addend(desc), t_gamma(gamma), t_beta(beta), t_mean(mean), t_var(variance),
      t_d_gamma(channels), t_d_beta(channels);
  const BatchNorm::Parameters parameters{.gamma = t_gamma.floats(),
                                         .beta = t_beta.floats(),
                                         .running_mean = t_mean.floats(),
                                         .running_var = t_var.floats()};
  const TensorView addend_view = has_addend ? t_addend.view() : TensorView{};
  norm->forward_training(t_x.view(), addend_view, parameters, t_y.view());
  EXPECT_LE(normalised_error(t_y.values(), y), allowed) << "y";
  EXPECT_LE(normalised_error(t_mean.values(), running_mean), 1e-6) << "running mean";
  EXPECT_LE(normalised_error(t_var.values(), running_var), 1e-6) << "running variance";

  GuardedTensor& out_dx = alias == Alias::dx_is_dy ? t_dy : alias == Alias::crossed ? t_dy2 : t_dx;
  GuardedTensor& out_addend =
      alias == Alias::addend_is_dy || alias == Alias::crossed ? t_dy : t_d_addend;
  norm->backward(t_x.view(), t_y.view(), parameters,
                 {.dy = t_dy.view(),
                  .dy2 = has_two ? t_dy2.view() : TensorView{},
                  .dx = out_dx.view(),
                  .d_addend = has_addend ? out_addend.view() : TensorView{},
                  .d_gamma = t_d_gamma.floats(),
                  .d_beta = t_d_beta.floats()});
  EXPECT_LE(normalised_error(out_dx.values(), dx), allowed) << "dx";
  if (has_addend) {
    EXPECT_LE(normalised_error(out_addend.values(), d_addend), allowed) << "d_addend";
  }
  EXPECT_LE(normalised_error(t_d_gamma.values(), d_gamma), allowed_parameters) << "d_gamma";
  EXPECT_LE(normalised_error(t_d_beta.values(), d_beta), allowed_parameters) << "d_beta";
  EXPECT_EQ(t_x.values(), x);

  return {t_y.raw(),       t_mean.raw(),   t_var.raw(),     out_dx.raw(),
          t_d_gamma.raw(), t_d_beta.raw(), out_addend.raw()};
}

TEST_P(BatchNormTwin, EqualsReference) {
  const NormCase& c = GetParam();
  if (skips(*make_test_device({}), c.type)) GTEST_SKIP() << "no bf16 on this processor";
  if (on_gpu() && c.block != c.shape.c) GTEST_SKIP() << kCpuBlocks;
  for (const bool has_relu : {false, true}) {
    for (const bool has_addend : {false, true}) {
      for (const bool has_two : {false, true}) {
        std::vector<Alias> aliases = {Alias::none, Alias::dx_is_dy};
        if (has_addend) aliases.push_back(Alias::addend_is_dy);
        if (has_addend && has_two) aliases.push_back(Alias::crossed);
        for (const Alias alias : aliases) {
          SCOPED_TRACE(testing::Message()
                       << "relu " << has_relu << ", addend " << has_addend << ", two gradients "
                       << has_two << ", alias " << static_cast<int>(alias));
          NormCase one = c;
          one.threads = 1;
          const Bits bits = check(c, has_relu, has_addend, has_two, alias);
          if (c.threads > 1 || on_gpu()) {
            EXPECT_EQ(bits, check(one, has_relu, has_addend, has_two, alias))
                << "1 thread or again";
          }
        }
      }
    }
  }
}

TEST_P(BatchNormTwin, InferenceEqualsReference) {
  const NormCase& c = GetParam();
  const auto device = make_test_device({.threads = c.threads, .tune = false});
  if (skips(*device, c.type)) GTEST_SKIP() << "no bf16 on this processor";
  if (on_gpu() && c.block != c.shape.c) GTEST_SKIP() << kCpuBlocks;
  const TensorDesc desc{c.shape, c.type, c.block};
  const std::size_t count = c.shape.elements(), channels = c.shape.c;
  const Doubles x = random_values(count, 1, c.type), addend = random_values(count, 2, c.type);
  const Doubles gamma = random_values(channels, 3), beta = random_values(channels, 4);
  const Doubles mean = random_values(channels, 5);
  Doubles variance = random_values(channels, 6);
  for (double& v : variance) v = static_cast<double>(static_cast<float>(v + 1.5));
  for (const bool has_addend : {false, true}) {
    for (const bool in_place : {false, true}) {
      const auto norm =
          make_batch_norm(*device, {.x = desc, .has_relu = true, .has_addend = has_addend});
      const reference::BatchNorm<double> twin{.rows = c.shape.n * c.shape.pixels(),
                                              .channels = channels,
                                              .has_relu = true,
                                              .has_addend = has_addend};
      Doubles y(count);
      twin.forward_inference(x.data(), addend.data(), gamma.data(), beta.data(), mean.data(),
                             variance.data(), y.data());
      GuardedTensor t_x(desc, x), t_addend(desc, addend), t_y(desc), t_gamma(gamma), t_beta(beta),
          t_mean(mean), t_var(variance);
      GuardedTensor& out = in_place ? t_x : t_y;
      norm->forward_inference(t_x.view(), has_addend ? t_addend.view() : TensorView{},
                              {t_gamma.floats(), t_beta.floats(), t_mean.floats(), t_var.floats()},
                              out.view());
      EXPECT_LE(normalised_error(out.values(), y), c.type == DataType::f32 ? 2e-6 : 1.6e-2);
      EXPECT_EQ(t_mean.values(), mean) << "statistics stay as they are";
      EXPECT_EQ(t_var.values(), variance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, BatchNormTwin,
    testing::Values(
        NormCase{{2, 7, 5, 16}, 16}, NormCase{{3, 5, 3, 64}, 16}, NormCase{{2, 4, 4, 64}, 8},
        NormCase{{2, 7, 5, 64}, 64}, NormCase{{3, 3, 3, 5}, 5}, NormCase{{2, 5, 4, 24}, 24},
        NormCase{{2, 5, 4, 24}, 8}, NormCase{{1, 7, 5, 3}, 3}, NormCase{{2, 2, 1, 16}, 16},
        NormCase{{3, 9, 7, 32}, 16, DataType::f32, 2}, NormCase{{2, 7, 5, 16}, 16, DataType::bf16},
        NormCase{{3, 5, 4, 5}, 5, DataType::bf16}, NormCase{{3, 5, 3, 64}, 16, DataType::bf16, 2},
        NormCase{{3, 9, 7, 32}, 32}, NormCase{{9, 17, 8, 64}, 64, DataType::bf16},
        NormCase{{3, 2, 2, 600}, 600}, NormCase{{2, 3, 3, 2080}, 2080, DataType::bf16}));

// One sample of one pixel: the variance is 0 and the unbiased one is undefined; results must stay
// finite.
TEST(BatchNorm, OneValuePerChannel) {
  const auto device = make_test_device({.tune = false});
  const TensorDesc desc = TensorDesc::nhwc({1, 1, 1, 16});
  const auto norm = make_batch_norm(*device, {.x = desc});
  GuardedTensor x(desc, random_values(16, 1)), y(desc), gamma(Doubles(16, 2.0)),
      beta(random_values(16, 2)), mean(Doubles(16, 0.0)), variance(Doubles(16, 1.0));
  norm->forward_training(
      x.view(), {}, {gamma.floats(), beta.floats(), mean.floats(), variance.floats()}, y.view());
  // scale = 2 / sqrt(1e-5) = 632; x times that rounds to 632 * 2^-24 and back is beta.
  EXPECT_LE(normalised_error(y.values(), beta.values()), 2e-4);
  EXPECT_LE(normalised_error(variance.values(), Doubles(16, 0.9)), 1e-6);
}

// A mean thousands of times the deviation: sums of squares, 10^7 times the variance, would leave
// nothing of the variance in fp32. The inputs are fp32 numbers, so the reference knows the variance
// exactly.
TEST(BatchNorm, MeanFarFromZero) {
  const auto device = make_test_device({.tune = false});
  const TensorDesc desc = TensorDesc::nhwc({4, 16, 16, 8});
  const auto norm = make_batch_norm(*device, {.x = desc, .momentum = 1.0f});
  const std::size_t count = desc.shape.elements();
  Doubles values = random_values(count, 1);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<double>(static_cast<float>(values[i] + (i % 8 < 4 ? 1e3 : -3e3)));
  }
  const Doubles ones(8, 1.0), zeros(8, 0.0);
  reference::BatchNorm<double> twin{
      .rows = count / 8, .channels = 8, .epsilon = 1e-5, .momentum = 1.0};
  Doubles running_mean = zeros, running_var = ones, y(count);
  twin.forward_training(values.data(), nullptr, ones.data(), zeros.data(), running_mean.data(),
                        running_var.data(), y.data());
  GuardedTensor t_x(desc, values), t_y(desc), gamma(ones), beta(zeros), mean(zeros), var(ones);
  norm->forward_training(t_x.view(), {},
                         {gamma.floats(), beta.floats(), mean.floats(), var.floats()}, t_y.view());
  // A GPU adds deviations from the first value, which are below 2 and exact: only the sums round, a
  // few times. The CPU's mean of an image comes from a sum near 2^20. Each of its 256 roundings is
  // up to 2^-5, so the mean is off by 2^-5 at worst, and the variance, 1/3, by the square of that.
  EXPECT_LE(normalised_error(mean.values(), running_mean), 1e-6);
  EXPECT_LE(normalised_error(var.values(), running_var), on_gpu() ? 2e-6 : 3e-3);
}

// A null gamma is a gamma of 1 everywhere, to the bit, and has no gradient.
TEST(BatchNorm, WithoutScale) {
  const auto device = make_test_device({.tune = false});
  const TensorDesc desc = TensorDesc::nhwc({3, 5, 4, 16});
  const std::size_t count = desc.shape.elements();
  std::vector<std::vector<std::byte>> results[2];
  for (const bool has_scale : {false, true}) {
    const auto norm = make_batch_norm(
        *device, {.x = desc, .has_relu = true, .epsilon = 1e-12f, .momentum = 0.4f});
    GuardedTensor x(desc, random_values(count, 1)), dy(desc, random_values(count, 2)), y(desc),
        dx(desc), tested(desc), gamma(Doubles(16, 1.0)), beta(random_values(16, 3)),
        mean(Doubles(16, 0.0)), variance(Doubles(16, 1.0)), d_gamma(16), d_beta(16);
    const BatchNorm::Parameters parameters{has_scale ? gamma.floats() : nullptr, beta.floats(),
                                           mean.floats(), variance.floats()};
    norm->forward_training(x.view(), {}, parameters, y.view());
    norm->backward(x.view(), y.view(), parameters,
                   {.dy = dy.view(),
                    .dy2 = {},
                    .dx = dx.view(),
                    .d_addend = {},
                    .d_gamma = has_scale ? d_gamma.floats() : nullptr,
                    .d_beta = d_beta.floats()});
    norm->forward_inference(x.view(), {}, parameters, tested.view());
    results[has_scale] = {y.raw(),  mean.raw(),   variance.raw(),
                          dx.raw(), d_beta.raw(), tested.raw()};
  }
  EXPECT_EQ(results[0], results[1]);
}

// A batch with infinities or NaN leaves the running statistics of those channels as they are.
TEST(BatchNorm, BatchThatIsNotFinite) {
  const auto device = make_test_device({.tune = false});
  const TensorDesc desc = TensorDesc::nhwc({2, 5, 5, 16});
  const auto norm = make_batch_norm(*device, {.x = desc, .has_relu = true});
  Doubles values = random_values(desc.shape.elements(), 1);
  values[16 * 7 + 3] = std::numeric_limits<double>::infinity();
  values[16 * 9 + 5] = std::numeric_limits<double>::quiet_NaN();
  values[6] = -std::numeric_limits<double>::infinity();  // the channel's first value
  const Doubles before = random_values(16, 2);
  GuardedTensor x(desc, values), y(desc), gamma(Doubles(16, 1.0)), beta(Doubles(16, 0.0)),
      mean(before), var(before);
  norm->forward_training(x.view(), {}, {gamma.floats(), beta.floats(), mean.floats(), var.floats()},
                         y.view());
  const Doubles means = mean.values(), variances = var.values(), outputs = y.values();
  for (std::size_t c = 0; c < 16; ++c) {
    const bool is_finite = c != 3 && c != 5 && c != 6;
    EXPECT_EQ(means[c] != before[c], is_finite) << c;
    EXPECT_EQ(variances[c] != before[c], is_finite) << c;
    EXPECT_EQ(std::isnan(outputs[c]), !is_finite) << "what is wrong shows, channel " << c;
  }
}

// ---- over the images of all ranks ---------------------------------------------------------------

// Ranks that are threads of this process.
class ThreadGather {
 public:
  explicit ThreadGather(std::size_t ranks)
      : barrier_(static_cast<std::ptrdiff_t>(ranks)), places_(ranks) {
    for (std::size_t r = 0; r < ranks; ++r) places_[r] = std::make_unique<Place>(*this, r);
  }
  [[nodiscard]] RankGather* of(std::size_t rank) { return places_[rank].get(); }
  [[nodiscard]] std::size_t most_floats() const { return places_[0]->most_floats; }

 private:
  struct Place final : RankGather {
    Place(ThreadGather& all, std::size_t r) : group(all), rank(r) {}
    [[nodiscard]] std::size_t ranks() const override { return group.places_.size(); }
    void reserve(std::size_t count) override { most_floats = std::max(most_floats, count); }
    void gather(Pass, std::span<const float> mine, std::span<float> all) override {
      floats = mine;
      group.barrier_.arrive_and_wait();
      for (std::size_t r = 0; r < ranks(); ++r) {
        const std::span<const float> theirs = group.places_[r]->floats;
        std::ranges::copy(theirs, all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
      }
      group.barrier_.arrive_and_wait();
    }
    ThreadGather& group;
    std::size_t rank, most_floats = 0;
    std::span<const float> floats;
  };
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<Place>> places_;
};

// A rank's part of a batch, its operation and what it wrote.
struct RankPart {
  RankPart(const NormCase& c, std::size_t first_image, std::size_t images, RankGather* gather,
           const Doubles& all_x, const Doubles& all_addend, const Doubles& all_dy,
           const Doubles& gamma_values, const Doubles& beta_values)
      : count(images),
        device(make_test_device({.threads = 1, .tune = false})),
        desc{{std::max<std::size_t>(images, 1), c.shape.h, c.shape.w, c.shape.c}, c.type, c.block},
        norm(make_batch_norm(
            *device,
            {.x = desc, .has_relu = true, .has_addend = !all_addend.empty(), .gather = gather})),
        x(desc, part(all_x, first_image)),
        addend(desc, part(all_addend.empty() ? all_x : all_addend, first_image)),
        y(desc),
        dy(desc, part(all_dy, first_image)),
        dx(desc),
        d_addend(desc),
        gamma(gamma_values),
        beta(beta_values),
        mean(Doubles(c.shape.c, 0.25)),
        variance(Doubles(c.shape.c, 1.5)),
        d_gamma(Doubles(c.shape.c, 0.0)),
        d_beta(Doubles(c.shape.c, 0.0)),
        has_addend(!all_addend.empty()) {}

  [[nodiscard]] Doubles part(const Doubles& all, std::size_t first_image) const {
    const std::size_t size = desc.shape.elements() / desc.shape.n;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_image * size);
    return {begin, begin + static_cast<std::ptrdiff_t>(desc.shape.elements())};
  }

  void run() {
    device->make_current();
    const BatchNorm::Parameters parameters{gamma.floats(), beta.floats(), mean.floats(),
                                           variance.floats()};
    if (count == 0) {
      norm->forward_without_images(parameters);
      norm->backward_without_images();
    } else {
      const TensorView none{};
      norm->forward_training(x.view(), has_addend ? addend.view() : none, parameters, y.view());
      norm->backward(x.view(), y.view(), parameters,
                     {.dy = dy.view(),
                      .dy2 = {},
                      .dx = dx.view(),
                      .d_addend = has_addend ? d_addend.view() : none,
                      .d_gamma = d_gamma.floats(),
                      .d_beta = d_beta.floats()});
    }
    device->synchronize();
  }

  std::size_t count;
  TestDevice device;
  TensorDesc desc;
  std::unique_ptr<BatchNorm> norm;
  GuardedTensor x, addend, y, dy, dx, d_addend, gamma, beta, mean, variance, d_gamma, d_beta;
  bool has_addend;
};

// Parts of a batch on ranks, some with fewer images and one with none, give the results of the
// whole batch in double. The running statistics are bit-identical on all ranks, also on the one
// without images, and a second run gives the same bits.
TEST(BatchNorm, ImagesOfAllRanks) {
  const NormCase c{{6, 5, 4, 24}, on_gpu() ? 24u : 8u};
  const std::size_t count = c.shape.elements(), channels = c.shape.c;
  Doubles x = random_values(count, 1);
  // The ranks' means differ much more than the images of one rank.
  for (std::size_t i = 0; i < count; ++i) {
    const double place = i < count / 2 ? 20.0 : 23.0;
    x[i] = static_cast<double>(static_cast<float>(x[i] + place));
  }
  const Doubles addend_values = random_values(count, 2), dy = random_values(count, 3);
  Doubles gamma = random_values(channels, 4);
  for (double& g : gamma) g = static_cast<double>(static_cast<float>(g + 2.0));
  const Doubles beta = random_values(channels, 5);
  for (const bool has_addend : {false, true}) {
    const Doubles addend = has_addend ? addend_values : Doubles();
    reference::BatchNorm<double> whole{
        .rows = count / channels, .channels = channels, .has_relu = true, .has_addend = has_addend};
    Doubles mean(channels, 0.25), variance(channels, 1.5), y(count), dx(count), d_addend(count),
        d_gamma(channels), d_beta(channels);
    whole.forward_training(x.data(), addend_values.data(), gamma.data(), beta.data(), mean.data(),
                           variance.data(), y.data());
    whole.backward(x.data(), y.data(), dy.data(), gamma.data(), dx.data(), d_addend.data(),
                   d_gamma.data(), d_beta.data());
    std::vector<std::vector<std::byte>> first_bits;
    for (const int round : {0, 1}) {
      constexpr std::size_t kImages[] = {3, 2, 0, 1};
      ThreadGather gather(std::size(kImages));
      std::vector<std::unique_ptr<RankPart>> ranks;
      std::size_t at = 0;
      for (std::size_t r = 0; r < std::size(kImages); ++r) {
        ranks.push_back(std::make_unique<RankPart>(c, at, kImages[r], gather.of(r), x, addend, dy,
                                                   gamma, beta));
        at += kImages[r];
      }
      EXPECT_EQ(gather.most_floats(), 1 + 2 * channels);
      {
        std::vector<std::jthread> threads;
        for (const auto& rank : ranks) threads.emplace_back([&] { rank->run(); });
      }
      Doubles all_y, all_dx, all_d_addend, sum_gamma(channels, 0.0), sum_beta(channels, 0.0);
      std::vector<std::vector<std::byte>> bits;
      const auto append = [](Doubles& all, const Doubles& more) {
        all.insert(all.end(), more.begin(), more.end());
      };
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank->mean.raw(), ranks[0]->mean.raw());
        EXPECT_EQ(rank->variance.raw(), ranks[0]->variance.raw());
        const Doubles gammas = rank->d_gamma.values(), betas = rank->d_beta.values();
        for (std::size_t i = 0; i < channels; ++i) {
          sum_gamma[i] += gammas[i];
          sum_beta[i] += betas[i];
        }
        if (rank->count == 0) continue;
        append(all_y, rank->y.values());
        append(all_dx, rank->dx.values());
        if (has_addend) append(all_d_addend, rank->d_addend.values());
        for (GuardedTensor* tensor : {&rank->y, &rank->dx, &rank->mean, &rank->d_gamma}) {
          bits.push_back(tensor->raw());
        }
      }
      // Values near 20 with a deviation of 1.6: x * scale + shift rounds at 20 / 1.6 x gamma of up
      // to 3, so 40 * 2^-24 = 2e-6 in values of about 2, and a mean in fp32 adds as much.
      EXPECT_LE(normalised_error(all_y, y), 1e-5);
      EXPECT_LE(normalised_error(all_dx, dx), 1e-5);
      if (has_addend) {
        EXPECT_LE(normalised_error(all_d_addend, d_addend), 0.0);
      }
      EXPECT_LE(normalised_error(sum_gamma, d_gamma), 1e-5);
      EXPECT_LE(normalised_error(sum_beta, d_beta), 1e-5);
      EXPECT_LE(normalised_error(ranks[2]->mean.values(), mean), 1e-6);
      EXPECT_LE(normalised_error(ranks[2]->variance.values(), variance), 1e-6);
      if (round == 0) first_bits = bits;
      EXPECT_EQ(bits, first_bits) << "again";
    }
  }
}

}  // namespace
}  // namespace dp::test
