// Predicts a step from what was measured before: the computation (rehearsal.hpp), the codecs
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

// What was measured on the ranks of this program.
struct Calibration {
  std::vector<TensorSlot> tensors;
  std::vector<std::vector<RehearsedStep>> steps;  // [step][rank]
  // Means over ranks. What a codec with bits= costs at other bits than those measured follows from
  // these.
  std::map<CodecSpec, CodecFigures> codecs;
  // The parts of the bytes of codecs with bits=, measured by rank 0.
  std::map<CodecSpec, ByteShares> byte_shares;
  // Whether the ranks compute on processors that their exchange needs, too.
  bool shares_processor = true;
  double cores_per_rank = 1.0;
  // As in StepSetup: of ranks that do not compute. What codecs cost was measured while all ranks
  // used them.
  double shared_cores = 0.0;

  // From the begin of a step to the begin of the next, without an exchange: each rank's median, and
  // the slowest rank's.
  [[nodiscard]] std::vector<double> computes_s() const;
  [[nodiscard]] double compute_s() const;
};

// Collective, between steps: measures these codecs on the gradient of the last step,
// on all ranks at the same time, as in an exchange. One with bits= is measured at several bits, and
// `has_dense`: so are the dense forms that auto may send. Rank 0 also measures where one with bits=
// spends its bytes, while the others wait.
void measure_codecs(Replica& replica, int rank, const std::vector<CodecSpec>& codecs,
                    bool has_dense, Calibration& calibration);
// The same on this gradient, in host memory.
void measure_codecs(Reducer& reducer, std::span<const float> gradient, int rank,
                    const std::vector<CodecSpec>& codecs, bool has_dense, Calibration& calibration);

// What is to be predicted.
struct StepChoice {
  std::vector<Bucket> buckets;
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  std::string topology = "ring";
  NetworkPorts ports;
  std::vector<int> hosts;  // by rank; ranks beyond those measured compute as these do, by turns
  std::size_t segment_bytes = ReducerOptions().segment_bytes;
  std::size_t window = ReducerOptions().window;
  std::size_t buckets_in_flight = ReducerOptions().buckets_in_flight;
  bool overlaps = true;
  double batch_factor = 1.0;  // images of a step over those measured
  // By rank: its images over those of the measured step times batch_factor; empty: 1. A step of
  // fewer images has a fixed part (StepModel::guess).
  std::vector<double> image_factors = {};
  std::vector<std::uint32_t> owner_weights = {};  // of direct, by rank (owner_weights.hpp)
  // The steps between two exchanges, whose forecast is then shared out among them; nothing is sent
  // while backward computes. 0: an exchange at every step.
  double round_steps = 0.0;
  double round_delay = 0.0;  // so many steps run while the exchange of a round does
};

// The bits a value that hide behind backward on every rank, as AutoRate finds them in a run.
[[nodiscard]] RateBudget hidden_budget(const Calibration& calibration, const StepChoice& choice);

struct Prediction {
  StepForecast step;
  // A value, of codecs with bits=: of auto those that hide, within its limits; else the mean of the
  // run. NaN for other codecs.
  double bits = RateReport::kNothing;
};

// Asserts that the codecs of all buckets were measured.
//
// With auto it is a step after the first ones, when the rate is what hides. A codec with bits=
// spends them by the run's plan (planned_bits in comm/rate/rate_control.hpp): then it is the mean
// of steps in the first and the second quarter of the run and in its second half.
[[nodiscard]] Prediction predict_step(const Calibration& calibration, const StepChoice& choice);
// The codec that sends values as this one does with so many bits: itself with these, or the one
// whose dense form that is.
[[nodiscard]] CodecSpec codec_at(const CodecSpec& codec, double bits);

// The steps between two exchanges that --sync-every auto would begin with after an epoch of steps
// with this forecast, which has an exchange at every step (round_schedule.hpp); at most `most`.
[[nodiscard]] std::size_t chosen_steps(const Calibration& calibration, const StepChoice& choice,
                                       const StepForecast& forecast, std::size_t most);

// Whether a run's own steps can be predicted: its link was measured, layers do not gather floats of
// all ranks (--sync-bn), and it has no more ranks than kMostPredictedRanks, which would take long
// to simulate. The same on all ranks.
inline constexpr std::size_t kMostPredictedRanks = 32;
[[nodiscard]] bool can_predict(const RunPlan& plan);

// Collective, before the first step of a run: a few steps with its first batch size and, if it can
// be predicted, what its codecs cost.
[[nodiscard]] Calibration rehearse_run(const RunPlan& plan, int rank, const CpuShare& share,
                                       Replica& replica, Loader& images);

// Collective, after it: what the run's own steps will be like, with its codec (after a warm-up);
// with --sync-every auto, until it chooses rounds. On rank 0; nothing on the others. image_factors:
// as in StepChoice.
[[nodiscard]] std::optional<Prediction> predict_run(const RunPlan& plan, int rank,
                                                    std::vector<double> image_factors,
                                                    const Calibration& calibration,
                                                    Replica& replica, const Loader& images);

}  // namespace dp
