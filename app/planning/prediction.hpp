// Predicts a step from earlier measurements: of the computation (rehearsal.hpp), the codecs
// (codec_costs.hpp) and the link (comm/network/link_probe.hpp). comm/network/step_simulation.hpp
// puts them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/planning/codec_costs.hpp"
#include "app/planning/rehearsal.hpp"
#include "app/process/process.hpp"
#include "app/training/replica/replica.hpp"
#include "app/training/setup/run_plan.hpp"
#include "comm/network/fluid_network.hpp"
#include "comm/network/step_simulation.hpp"
#include "comm/rate/auto_rate.hpp"

namespace dp {

// Measurements on the ranks of this program.
struct Calibration {
  std::vector<TensorSlot> tensors;
  std::vector<std::vector<RehearsedStep>> steps;  // [step][rank]
  // Means over ranks. The cost of a codec with bits= at other bits is interpolated between these.
  std::map<CodecSpec, CodecFigures> codecs;
  // How codecs with bits= distribute their bytes, measured by rank 0.
  std::map<CodecSpec, ByteShares> byte_shares;
  // Whether the ranks compute on the processors that their exchange needs, too.
  bool shares_processor = true;
  double cores_per_rank = 1.0;
  // As in StepSetup: cores that the threads of all ranks share, for ranks that do not compute. The
  // codecs were measured while all ranks used these cores.
  double shared_cores = 0.0;

  // Time from the beginning of a step to the beginning of the next, without an exchange: each
  // rank's median, and the slowest rank's.
  [[nodiscard]] std::vector<double> computes_s() const;
  [[nodiscard]] double compute_s() const;
};

// Collective, between steps: measures these codecs on the gradient of the last step, on all ranks
// at the same time, as in an exchange. A codec with bits= is measured at several bits. has_dense:
// the dense forms that auto may send are measured, too. Rank 0 also measures how codecs with bits=
// distribute their bytes, while the others wait.
void measure_codecs(Replica& replica, int rank, const std::vector<CodecSpec>& codecs,
                    bool has_dense, Calibration& calibration);
// The same on a gradient in host memory.
void measure_codecs(Reducer& reducer, std::span<const float> gradient, int rank,
                    const std::vector<CodecSpec>& codecs, bool has_dense, Calibration& calibration);

// The step to predict.
struct StepChoice {
  std::vector<Bucket> buckets;
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  std::string topology = "ring";
  NetworkPorts ports;
  std::vector<int> hosts;  // by rank; ranks beyond the measured ones repeat these in turn
  std::size_t segment_bytes = ReducerOptions().segment_bytes;
  std::size_t window = ReducerOptions().window;
  std::size_t buckets_in_flight = ReducerOptions().buckets_in_flight;
  bool overlaps = true;
  double batch_factor = 1.0;  // images of a step, divided by those measured
  // By rank: its images, divided by batch_factor times the images of the measured step; empty: 1. A
  // part of a step's time is fixed and does not shrink with the images (StepModel::guess).
  std::vector<double> image_factors = {};
  std::vector<std::uint32_t> owner_weights = {};  // of direct, by rank (owner_weights.hpp)
  // The steps between two exchanges; 0: an exchange at every step. In rounds nothing is sent while
  // backward computes, and the cost of an exchange is spread over the steps of its round.
  double round_steps = 0.0;
  double round_delay = 0.0;  // steps that run while a round's exchange does
};

// The bits per value that hide behind backward on every rank, as AutoRate finds them in a run.
[[nodiscard]] RateBudget hidden_budget(const Calibration& calibration, const StepChoice& choice);

struct Prediction {
  StepForecast step;
  // Per value, for codecs with bits=. With auto, the bits that hide, within its limits; otherwise
  // the mean of the run. NaN for other codecs.
  double bits = RateReport::kNothing;
};

// Asserts that the codecs of all buckets were measured.
//
// With auto it predicts a step after the first ones, when the rate has settled at what hides. A
// codec with bits= spends them by the run's plan (planned_bits in comm/rate/rate_control.hpp). The
// prediction is then the mean over the first and the second quarter of the run and its second half.
[[nodiscard]] Prediction predict_step(const Calibration& calibration, const StepChoice& choice);
// The codec that sends values with this many bits: the same codec with these bits, or the dense
// form that has them.
[[nodiscard]] CodecSpec codec_at(const CodecSpec& codec, double bits);

// The steps between two exchanges that --sync-every auto would choose after an epoch of steps with
// this forecast, which has an exchange at every step (round_schedule.hpp); at most `most`.
[[nodiscard]] std::size_t chosen_steps(const Calibration& calibration, const StepChoice& choice,
                                       const StepForecast& forecast, std::size_t most);

// Whether a run's own steps can be predicted: its link was measured, no layer gathers values of all
// ranks (--sync-bn), and it has no more than kMostPredictedRanks ranks, because more take long to
// simulate. The same on all ranks.
inline constexpr std::size_t kMostPredictedRanks = 32;
[[nodiscard]] bool can_predict(const RunPlan& plan);

// Collective, before the first step of a run: rehearses a few steps with the first batch size. If
// the run can be predicted, it also measures the run's codecs.
[[nodiscard]] Calibration rehearse_run(const RunPlan& plan, int rank, const CpuShare& share,
                                       Replica& replica, Loader& images);

// Collective, after rehearse_run(): predicts the run's own steps, with its codec (after a warm-up);
// with --sync-every auto, until it chooses rounds. Returns the prediction on rank 0, nothing on the
// others. image_factors: as in StepChoice.
[[nodiscard]] std::optional<Prediction> predict_run(const RunPlan& plan, int rank,
                                                    std::vector<double> image_factors,
                                                    const Calibration& calibration,
                                                    Replica& replica, const Loader& images);

}  // namespace dp
