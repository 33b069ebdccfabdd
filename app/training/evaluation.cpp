#include "app/training/evaluation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "app/process/stop_notice.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// While an object of this class exists, the replica has the averaged weights.
class AveragedWeights {
 public:
  explicit AveragedWeights(Replica& replica) : policy_(replica.policy()) {
    policy_.swap_evaluated();
  }
  ~AveragedWeights() {
    try {
      policy_.swap_evaluated();
    } catch (const Error&) {
      // A failure of the GPU is not reported here, because the next wait for the GPU throws.
    }
  }
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  SyncPolicy& policy_;
};

EvaluationResult sum_over_ranks(Replica& replica, const LossSums& mine) {
  return replica.sync().reducer().run([&](Communicator& comm) {
    std::array<std::int64_t, 3> counts = {mine.correct, mine.samples, StopNotice::wish() ? 1 : 0};
    const double loss = comm.all_sum(mine.loss);
    comm.all_sum(counts);
    return EvaluationResult{
        .loss = loss, .correct = counts[0], .samples = counts[1], .stop_wishes = counts[2]};
  });
}

struct View {
  Augmentation augmentation;
  float weight;
};

std::vector<View> views_of(const Options& options) {
  const Options::TestAugment kind = options.test_augment;
  const auto view = [&](int shift, bool is_flipped, float weight) {
    return View{{.shift_x = shift,
                 .shift_y = shift,
                 .is_flipped = is_flipped,
                 .is_reflected = options.crop_fill == Options::CropFill::reflect},
                weight};
  };
  if (kind == Options::TestAugment::mirror) return {view(0, false, 0.5f), view(0, true, 0.5f)};
  return {view(0, false, 0.25f),  view(0, true, 0.25f),   view(-1, false, 0.125f),
          view(-1, true, 0.125f), view(1, false, 0.125f), view(1, true, 0.125f)};
}

// Adds the loss of one image, and counts the image if the model classifies it correctly. The
// model's choice is the class with the largest logit, or the first such class if several logits are
// equal.
void add_result(std::span<const float> logits, std::int32_t label, LossSums& sums) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  double all = 0;
  for (const float logit : logits) all += std::exp(static_cast<double>(logit) - *largest);
  sums.loss += std::log(all) + *largest - logits[static_cast<std::size_t>(label)];
  sums.correct += largest - logits.begin() == label ? 1 : 0;
  ++sums.samples;
}

}  // namespace

void average_statistics(Replica& replica, const Shares& shares) {
  net::Parameters& parameters = replica.network().parameters();
  const std::vector<float> mine = to_host(replica.device(), parameters.training_statistics());
  std::vector<double> sums(mine.begin(), mine.end());
  double weights = 0;
  replica.sync().reducer().run([&](Communicator& comm) {
    const auto weight = static_cast<double>(shares.weight(static_cast<std::size_t>(comm.rank())));
    for (double& value : sums) value *= weight;
    comm.all_sum(sums);
    weights = comm.all_sum(weight);
  });
  std::vector<float> mean(sums.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = static_cast<float>(sums[i] / weights);
  }
  replica.device().upload(parameters.evaluation_statistics().data(), mean.data(),
                          mean.size() * sizeof(float));
}

EvaluationResult evaluate(Replica& replica, Loader& images, const Shares& shares) {
  const AveragedWeights averaged(replica);
  average_statistics(replica, shares);
  LossSums sums;
  images.start_epoch(0);
  for (std::size_t s = 0; s < images.steps(); ++s) {
    const Batch& batch = images.next();
    replica.prepare(batch.samples, net::Mode::evaluation);  // shares may have changed
    replica.load(batch);
    sums += replica.evaluate();
  }
  return sum_over_ranks(replica, sums);
}

EvaluationResult evaluate_augmented(const Options& options, Replica& replica, Loader& images,
                                    const Shares& shares) {
  const AveragedWeights averaged(replica);
  average_statistics(replica, shares);
  const std::size_t classes = replica.network().classes();
  std::vector<float> sums;  // a row of weighted logits for each image of this rank
  std::vector<std::int32_t> labels;
  for (const View& view : views_of(options)) {
    const bool is_first = labels.empty();
    images.set_view(view.augmentation);
    images.start_epoch(0);
    std::size_t at = 0;
    for (std::size_t s = 0; s < images.steps(); ++s) {
      const Batch& batch = images.next();
      if (is_first) {
        labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
        sums.resize(labels.size() * classes);
      }
      replica.prepare(batch.samples, net::Mode::evaluation);
      replica.load(batch);
      for (const float logit : replica.logits()) sums[at++] += view.weight * logit;
    }
    DP_ASSERT(at == sums.size(), "{} logits of {}", at, sums.size());
  }
  images.set_view({});
  LossSums mine;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    add_result(std::span(sums).subspan(i * classes, classes), labels[i], mine);
  }
  return sum_over_ranks(replica, mine);
}

WeightSet collect_evaluated_weights(Replica& replica) {
  const AveragedWeights averaged(replica);
  return collect_weights(replica.device(), replica.network());
}

}  // namespace dp
