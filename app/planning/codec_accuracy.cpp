#include "app/planning/codec_accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace dp {
namespace {

constexpr double kExact = 0.855;  // fp32's loss

struct Row {
  const char* spec;
  double ring, direct;  // the last epoch's training loss; 0: not measured
};

constexpr Row kRows[] = {{"none", kExact, kExact},
                         {"fp16", 0.838, 0.0},
                         {"q8", 0.840, 0.0},
                         {"q8n", 0.847, 0.0},
                         {"q4", 0.867, 0.0},
                         {"q4n", 0.872, 0.0},
                         {"powersgd:rank=4", 0.914, 0.0},
                         {"q2", 1.004, 0.992},
                         {"q2:block=256", 0.963, 0.956},
                         {"threshold:alpha=0.01", 1.018, 1.090},
                         {"topk:ratio=0.01", 1.130, 1.081},
                         {"dgc:ratio=0.01", 0.968, 0.977},
                         {"sign", 1.407, 1.398}};

// Bits a value and the loss. Means of three seeds, unless a comment says that it is one run; fp32's
// mean beside them is kExactOfRates.
struct RatePoint {
  double bits, loss;
};
constexpr double kExactOfRates = 0.872;

// ecq:bits=, which spends the mean of the run by a plan.
constexpr RatePoint kGradients[] = {{0.05, 0.989}, {0.1, 0.945}, {0.2, 0.907},
                                    {0.35, 0.859}, {0.6, 0.849}, {1.2, 0.858}};
constexpr RatePoint kGradientsOnRing[] = {{0.05, 1.038}, {0.1, 0.950}, {0.2, 0.901},
                                          {0.35, 0.879}, {0.6, 0.858}, {1.2, 0.853}};
constexpr RatePoint kVelocities[] = {  // one run
    {0.2, 0.886},
    {0.35, 0.864},
    {0.6, 0.850},
    {1.2, 0.813}};
constexpr RatePoint kMasked[] = {{0.05, 0.988}, {0.1, 0.889}, {0.2, 0.848}, {0.35, 0.828},
                                 {0.6, 0.897},  {1.2, 0.971}};  // the last two: one run
// auto, whose bits are about the same in all steps: one run.
constexpr RatePoint kEven[] = {{0.2, 0.916}, {0.35, 0.880}, {0.6, 0.831}, {1.0, 0.861}};
constexpr RatePoint kEvenVelocities[] = {
    {0.1, 0.916}, {0.2, 0.851}, {0.35, 0.844}, {0.6, 0.846}, {1.0, 0.848}};

// The loss divided by fp32's. Between two points it follows the logarithm of the rate. Beyond them
// nobody has tried.
std::optional<double> loss_at(std::span<const RatePoint> points, double bits) {
  if (points.empty() || bits < points.front().bits || bits > points.back().bits)
    return std::nullopt;
  std::size_t i = 1;
  while (bits > points[i].bits) ++i;
  const double share =
      std::log(bits / points[i - 1].bits) / std::log(points[i].bits / points[i - 1].bits);
  return (points[i - 1].loss + share * (points[i].loss - points[i - 1].loss)) / kExactOfRates;
}

// Nothing where no study had it: over a ring, gradients by a plan alone.
std::span<const RatePoint> points_of(const CodecSpec& codec, bool is_on_ring, bool is_even) {
  const bool is_masked = codec.has_choice("velocity", "masked");
  const bool is_gradients = !is_masked && !codec.has_choice("velocity", "on");
  if (is_on_ring) {
    return is_gradients && !is_even ? std::span<const RatePoint>(kGradientsOnRing)
                                    : std::span<const RatePoint>();
  }
  if (is_gradients) return is_even ? std::span<const RatePoint>(kEven) : kGradients;
  if (is_even) return kEvenVelocities;
  return is_masked ? std::span<const RatePoint>(kMasked) : kVelocities;
}

// Nothing where the spec has more than bits= and velocity=.
std::optional<double> loss_of_rate(const CodecSpec& codec, const std::string& topology,
                                   bool is_even) {
  if (topology != "direct" && topology != "ring") return std::nullopt;
  const auto bits = codec.settings.find("bits");
  if (bits == codec.settings.end() || bits->second <= 0.0) return std::nullopt;
  CodecSpec plain = parse_codec_spec("ecq");
  plain.settings["bits"] = bits->second;
  plain.settings["velocity"] = codec.settings.at("velocity");
  if (plain != codec) return std::nullopt;
  return loss_at(points_of(codec, topology == "ring", is_even), bits->second);
}

}  // namespace

std::optional<double> loss_of_studies(const CodecSpec& codec, const std::string& topology,
                                      bool is_even) {
  if (codec.name == "ecq") return loss_of_rate(codec, topology, is_even);
  for (const Row& row : kRows) {
    if (parse_codec_spec(row.spec) != codec) continue;
    double loss = topology == "direct" ? row.direct : row.ring;
    // Where only one of the two was tried, they hardly differ.
    if (loss == 0.0) loss = std::max(row.ring, row.direct);
    return loss / kExact;
  }
  return std::nullopt;
}

}  // namespace dp
