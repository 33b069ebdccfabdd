// Predicts a training step from measurements of the computation (rehearsal.hpp), of the codecs
// (codec_costs.hpp) and of the link (comm/network/link_probe.hpp).
// comm/network/step_simulation.hpp puts these together.
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
  // Means over ranks. Codecs with bits= have entries for several bits; costs at other bits are
  // interpolated between these entries.
  std::map<CodecSpec, CodecFigures> codecs;
  // How codecs with bits= distribute their bytes, measured by rank 0.
  std::map<CodecSpec, ByteShares> byte_shares;
  // Whether the ranks compute on the same processors that their exchange needs.
  bool shares_processor = true;
  double cores_per_rank = 1.0;
  // If the ranks only exchange and do not compute: the number of cores that the threads of all
  // ranks share (StepSetup::shared_cores). The codecs were measured while all ranks used these
  // cores.
  double shared_cores = 0.0;

  // The time from the beginning of a step to the beginning of the next, without an exchange. The
  // first function returns each rank's median, and the second one the slowest rank's.
  [[nodiscard]] std::vector<double> computes_s() const;
  [[nodiscard]] double compute_s() const;
};

// Collective, between steps. Measures these codecs on the gradient of the last step, on all ranks
// at the same time, as in an exchange. A codec with bits= is measured at several bits. has_dense:
// whether the dense forms that "auto" may send are measured, too. Rank 0 also measures how codecs
// with bits= distribute their bytes, while the other ranks wait.
void measure_codecs(Replica& replica, int rank, const std::vector<CodecSpec>& codecs,
                    bool has_dense, Calibration& calibration);
// The same on a gradient in host memory.
void measure_codecs(Reducer& reducer, std::span<const float> gradient, int rank,
                    const std::vector<CodecSpec>& codecs, bool has_dense, Calibration& calibration);

// The step to predict.
struct StepChoice {
  std::vector<Bucket> buckets;
  std::optional<RateLimits> limits = std::nullopt;  // the limits of "auto", if that is the choice
  std::string topology = "ring";
  NetworkPorts ports;
  std::vector<int> hosts;  // by rank; if more than were measured, measured ranks are repeated
  std::size_t segment_bytes = ReducerOptions().segment_bytes;
  std::size_t window = ReducerOptions().window;
  std::size_t buckets_in_flight = ReducerOptions().buckets_in_flight;
  bool overlaps = true;
  double batch_factor = 1.0;  // images of a step, divided by those of the measured step
  // For each rank, its images divided by the ranks' mean; empty: 1 for every rank. A step's time is
  // not proportional to this factor, because a part of the time is fixed (StepModel::guess).
  std::vector<double> image_factors = {};
  std::vector<std::uint32_t> owner_weights = {};  // for "direct", by rank (owner_weights.hpp)
  // The steps between two exchanges; 0: an exchange at every step. In rounds nothing is sent while
  // backward computes, and the cost of an exchange is spread over the steps of its round.
  double round_steps = 0.0;
  double round_delay = 0.0;  // the steps of the next round that run during a round's exchange
};

// The bits per value whose exchange hides behind backward on every rank, as AutoRate finds them in
// a run.
[[nodiscard]] RateBudget hidden_budget(const Calibration& calibration, const StepChoice& choice);

struct Prediction {
  StepForecast step;
  // The bits per value of codecs with bits=; NaN for other codecs. With "auto", they are the bits
  // whose exchange hides behind backward, within the limits. Without "auto", they are the mean over
  // the run.
  double bits = RateReport::kNothing;
  // With --sync-every auto: the steps of a round in the first epoch; 1: an exchange at every step.
  std::size_t first_round = 1;
};

// Asserts that the codecs of all buckets were measured.
//
// With "auto", the prediction is for a step after the first few training steps. By then the bits
// have settled at the number whose exchange hides behind backward. Without "auto", a codec with
// bits= distributes its bits over the run by a plan (planned_bits in comm/rate/rate_control.hpp).
// The prediction is then a mean over the run: its first quarter, its second quarter and its second
// half are predicted separately.
[[nodiscard]] Prediction predict_step(const Calibration& calibration, const StepChoice& choice);
// The codec that sends values with this many bits: the dense form with exactly these bits, if there
// is one, and otherwise the same codec with these bits.
[[nodiscard]] CodecSpec codec_at(const CodecSpec& codec, double bits);

// The number of steps between two exchanges, at most `most`, that --sync-every auto would choose
// after an epoch (round_schedule.hpp). forecast: a step of that epoch, which has an exchange at
// every step.
[[nodiscard]] std::size_t chosen_steps(const StepForecast& forecast, std::size_t most);

// Whether a run's own steps can be predicted. This needs a measured link and no layer that gathers
// values of all ranks (--sync-bn). There may be no more than kMostPredictedRanks ranks, because
// simulating more ranks takes long. All ranks get the same answer.
inline constexpr std::size_t kMostPredictedRanks = 32;
[[nodiscard]] bool can_predict(const RunPlan& plan);

// Collective, before the first step of a run. Rehearses a few steps with the first batch size and,
// if the run can be predicted, measures the run's codecs.
[[nodiscard]] Calibration rehearse_run(const RunPlan& plan, int rank, const CpuShare& share,
                                       Replica& replica, Loader& images);

// Collective, after rehearse_run(). Predicts the steps of the run for the time after the codec's
// warm-up. With --sync-every auto, the prediction is for the first epoch, and it chooses this
// epoch's rounds: two steps long if training would wait with an exchange at every step. Longer
// rounds could cost accuracy, so they are left to choices from the run's own times. Returns the
// prediction on rank 0, and nothing on other ranks. image_factors: as in StepChoice.
[[nodiscard]] std::optional<Prediction> predict_run(const RunPlan& plan, int rank,
                                                    std::vector<double> image_factors,
                                                    const Calibration& calibration,
                                                    Replica& replica, const Loader& images);

}  // namespace dp
