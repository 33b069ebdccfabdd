// What a training loop needs of dptrain's exchange, and nothing more: this program is linked to
// dp_comm alone (comm_alone_test.py looks), without networks, data sets or operations.
//
// All ranks fit one linear model, each to samples of its own. GradientSync sums their gradients in
// 8 bits on the topology `direct`. After every step all ranks must hold the same parameters, bit
// for bit, and what was delivered must be the sum of all gradients, up to the rounding of q8. At
// the end the model must have learnt. It runs under mpirun with any number of ranks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/runtime/mpi_runtime.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace {

constexpr std::size_t kInputs = 128, kOutputs = 64, kSamples = 64;  // samples of a rank and step
constexpr std::uint64_t kSteps = 30;
constexpr float kLearningRate = 0.2f;

// y = weights x + bias. Parameters are one flat buffer, and so are their gradients: first what has
// two or more dimensions, then what has one.
constexpr std::size_t kWeights = kOutputs * kInputs, kParameters = kWeights + kOutputs;
enum Tensor : std::size_t { weights, bias };
std::vector<dp::TensorSlot> tensor_slots() {
  return {
      {.offset = 0, .rows = kOutputs, .columns = kInputs, .name = "weights"},
      {.offset = kWeights, .rows = 1, .columns = kOutputs, .is_1d = true, .name = "bias"},
  };
}

std::vector<float> normal_values(std::size_t n, std::uint64_t seed, std::uint64_t stream) {
  const dp::CounterRng rng(seed, dp::RandomStream::test, stream);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(dp::normal(rng, i));
  return values;
}

// This rank's part of the gradient of the mean squared error over the samples of all ranks; the
// exchange sums and never divides. The model should become `truth`. Returns its part of the loss.
double backward(std::span<const float> parameters, std::span<const float> truth,
                std::span<const float> inputs, int ranks, std::span<float> gradient) {
  const float share = 1.0f / static_cast<float>(kSamples * static_cast<std::size_t>(ranks));
  std::ranges::fill(gradient, 0.0f);
  double loss = 0.0;
  for (std::size_t sample = 0; sample < kSamples; ++sample) {
    const std::span<const float> x = inputs.subspan(sample * kInputs, kInputs);
    for (std::size_t k = 0; k < kOutputs; ++k) {
      const std::size_t row = k * kInputs;
      float error = parameters[kWeights + k] - truth[kWeights + k];
      for (std::size_t i = 0; i < kInputs; ++i) {
        error += (parameters[row + i] - truth[row + i]) * x[i];
      }
      for (std::size_t i = 0; i < kInputs; ++i) gradient[row + i] += share * error * x[i];
      gradient[kWeights + k] += share * error;
      loss += static_cast<double>(share * error * error) / kOutputs;
    }
  }
  return loss;
}

void require(bool holds, const char* what, double value) {
  if (!holds) dp::throw_error(dp::ErrorKind::internal, "{}: {}", what, value);
}

void train() {
  dp::Communicator comm;
  const auto rank = static_cast<std::uint64_t>(comm.rank());
  const std::vector<float> truth = normal_values(kParameters, 1, 0);
  std::vector<float> parameters(kParameters), gradient(kParameters), own(kParameters);

  // No device: the gradient is in host memory.
  dp::GradientSync sync(nullptr, gradient, tensor_slots(),
                        {.compress = dp::parse_compress("q8"), .reducer = {.topology = "direct"}});
  sync.connect(comm);  // from here on the communicator is used through run() alone
  sync.begin_epoch(0);
  const auto sum_of_all = [&](auto value) {
    return sync.reducer().run([&](dp::Communicator& c) { return c.all_sum(value); });
  };

  double first_loss = 0.0, loss = 0.0, largest_error = 0.0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::vector<float> inputs = normal_values(kSamples * kInputs, 2 + step, rank);
    loss = backward(parameters, truth, inputs, comm.size(), own);

    sync.begin_step(step);
    std::ranges::copy(std::span(own).subspan(kWeights), gradient.begin() + kWeights);
    sync.tensor_final(bias);
    std::ranges::copy(std::span(own).first(kWeights), gradient.begin());
    sync.tensor_final(weights);
    const dp::StepVerdict verdict = sync.finish_step();
    require(verdict.finite, "a gradient is not finite in step", static_cast<double>(step));
    for (std::size_t i = 0; i < kParameters; ++i) parameters[i] -= kLearningRate * gradient[i];

    // What was delivered, beside the exact sum.
    std::vector<double> exact(own.begin(), own.end());
    sync.reducer().run([&](dp::Communicator& c) {
      c.all_sum(std::span(exact));
      static_cast<void>(dp::agree_on_hash(c, parameters));  // throws where ranks differ
    });
    double error = 0.0, all = 0.0;
    for (std::size_t i = 0; i < kParameters; ++i) {
      error += std::pow(static_cast<double>(gradient[i]) - exact[i], 2);
      all += std::pow(exact[i], 2);
    }
    largest_error = std::max(largest_error, std::sqrt(error / all));
    loss = sum_of_all(loss);
    if (step == 0) first_loss = loss;
  }
  // A bin is 1/127 of a block's largest magnitude, so the error of a normal value is about 0.8 % of
  // its deviation. It comes twice (each rank's part and the sum are encoded), and once more from
  // the step before, whose larger gradients have left residuals: together about 2 %.
  require(largest_error < 0.05, "the sums are wrong by a share of", largest_error);
  require(comm.size() == 1 || largest_error > 1e-5, "nothing was compressed: the error is",
          largest_error);
  require(loss < 0.01 * first_loss, "the model has not learnt: the loss is", loss);
  if (comm.rank() == 0) {
    std::printf("%d ranks: loss %.3g -> %.3g, relative error of the sums up to %.2g\n", comm.size(),
                first_loss, loss, largest_error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  dp::MpiRuntime mpi(&argc, &argv);
  try {
    train();
    return 0;
  } catch (...) {
    return mpi.end_with_error("gradient_sync_example");
  }
}
