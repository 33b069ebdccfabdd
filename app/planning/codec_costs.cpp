#include "app/planning/codec_costs.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include "comm/exchange/message_header.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/reducer/reducer.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/powersgd_factors.hpp"
#include "kernels/base/random.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostFloats = 1u << 20;  // at most this much of the gradient is measured
constexpr std::size_t kPasses = 3;             // the times are medians over this many passes

template <class F>
double seconds_of(F f) {
  const Clock::time_point begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The compressed region: everything up to the first one-dimensional tensor.
std::size_t compressed_floats(std::span<const TensorSlot> tensors, std::size_t all) {
  const auto first = std::ranges::find_if(tensors, &TensorSlot::is_1d);
  return first == tensors.end() ? all : std::max<std::size_t>(first->offset, 1);
}

// Returns the step size of the quantiser with which a codec sends as many bits per value as its
// `bits=` asks for. Returns 0 if the codec chooses its own step size. bytes(step) returns the bytes
// that the values take with this step size.
template <class F>
float step_for(const Codec& codec, std::span<const float> values, F bytes) {
  const auto bits = codec.spec().settings.find("bits");
  if (!codec.takes_step() || bits == codec.spec().settings.end() || bits->second <= 0.0) return 0;
  const double wanted = bits->second / 8.0 * static_cast<double>(values.size());
  double squares = 0.0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double rms = std::sqrt(squares / static_cast<double>(values.size()));
  if (!(rms > 0.0) || !std::isfinite(rms)) return 0;
  double fine = 0.01 * rms, coarse = 100.0 * rms;  // too many bytes, and too few
  for (int i = 0; i < 12; ++i) {
    const double step = std::sqrt(fine * coarse);
    (bytes(static_cast<float>(step)) > wanted ? fine : coarse) = step;
  }
  return static_cast<float>(std::sqrt(fine * coarse));
}

CodecFigures measure_encoding(const CodecSpec& spec, std::span<const float> gradient,
                              std::size_t segment_bytes) {
  const auto codec = make_codec(spec);
  const std::size_t segment = segment_floats(segment_bytes, *codec);
  const std::span<const float> values = gradient.first(std::min(gradient.size(), kMostFloats));
  std::vector<float> residual(values.size()), sums(values.begin(), values.end());
  std::vector<std::byte> payload(codec->max_payload_bytes(std::min(segment, values.size())));
  const std::span<const float> some = values.first(std::min(segment, values.size()));
  const float step = step_for(*codec, some, [&](float quantiser_step) {
    return static_cast<double>(
        codec->encode(some, nullptr, payload, {.quantiser_step = quantiser_step}).payload_bytes);
  });
  std::vector<double> encode_s, decode_s;
  double bytes = 0.0;
  // The first pass only warms the caches and is not counted.
  for (std::size_t pass = 0; pass <= kPasses; ++pass) {
    double encode = 0.0, decode = 0.0;
    bytes = 0.0;
    for (std::size_t at = 0; at < values.size(); at += segment) {
      const std::size_t n = std::min(segment, values.size() - at);
      EncodeResult result;
      encode += seconds_of([&] {
        result =
            codec->encode(values.subspan(at, n), spec.feedback ? residual.data() + at : nullptr,
                          payload, {.step = pass, .offset = at, .quantiser_step = step});
      });
      bytes += static_cast<double>(result.payload_bytes);
      decode += seconds_of([&] {
        codec->decode_add(std::span<const std::byte>(payload).first(result.payload_bytes),
                          std::span(sums).subspan(at, n));
      });
    }
    if (pass == 0) continue;
    encode_s.push_back(encode);
    decode_s.push_back(decode);
  }
  const double floats = static_cast<double>(values.size());
  // Over many training steps, a codec with `bits=` sends this many bits per value on average, even
  // if this gradient takes more or fewer. The average is therefore used instead of the measured
  // bytes.
  if (step > 0.0f) bytes = codec->spec().number("bits") / 8.0 * floats;
  return {.encode_s = median(encode_s) / floats,
          .decode_s = median(decode_s) / floats,
          .payload_bytes = bytes / floats};
}

CodecFigures measure_factors(std::size_t rank, std::span<const float> gradient,
                             std::span<const TensorSlot> tensors) {
  std::vector<float> residual(gradient.size()), values(gradient.begin(), gradient.end());
  double first = 0.0, second = 0.0, deliver = 0.0, floats = 0.0;
  for (const TensorSlot& tensor : tensors) {
    const powersgd::Matrix shape = {tensor.rows, tensor.columns};
    if (tensor.is_1d || rank * (shape.rows + shape.columns) >= tensor.elements()) continue;
    std::vector<float> p(rank * shape.rows), q(rank * shape.columns), next_q(q.size());
    const CounterRng rng(1, RandomStream::test);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(rng.uniform(i));
    std::vector<double> work(powersgd::orthonormalise_work(shape.rows, rank));
    float* const m = values.data() + tensor.offset;
    float* const rest = residual.data() + tensor.offset;
    std::vector<double> first_s, second_s, deliver_s;
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      first_s.push_back(
          seconds_of([&] { powersgd::multiply(shape, m, rest, q.data(), rank, p.data()); }));
      second_s.push_back(seconds_of([&] {
        powersgd::orthonormalise(shape.rows, rank, p.data(), work.data());
        powersgd::multiply_transposed(shape, m, rest, p.data(), rank, next_q.data());
      }));
      deliver_s.push_back(seconds_of([&] {
        powersgd::deliver(shape, m, rest, p.data(), next_q.data(), next_q.data(), rank);
      }));
    }
    first += median(first_s);
    second += median(second_s);
    deliver += median(deliver_s);
    floats += static_cast<double>(tensor.elements());
    if (floats > static_cast<double>(4 * kMostFloats)) break;
  }
  if (floats == 0.0) return {};
  return {.first_s = first / floats, .second_s = second / floats, .deliver_s = deliver / floats};
}

}  // namespace

CodecFigures measure_codec(const CodecSpec& spec, std::span<const float> gradient,
                           std::span<const TensorSlot> tensors, std::size_t segment_bytes) {
  if (find_codec(spec.name)->is_exchange) {
    return measure_factors(spec.whole("rank"), gradient, tensors);
  }
  return measure_encoding(spec, gradient.first(compressed_floats(tensors, gradient.size())),
                          segment_bytes);
}

CodecFigures CodecFigures::over(double times) const {
  CodecFigures quicker = *this;
  for (double CodecFigures::*seconds :
       {&CodecFigures::encode_s, &CodecFigures::decode_s, &CodecFigures::first_s,
        &CodecFigures::second_s, &CodecFigures::deliver_s}) {
    quicker.*seconds /= times;
  }
  return quicker;
}

ByteShares::ByteShares(std::span<const double> bytes, std::size_t floats)
    : before_(1), part_(static_cast<double>(floats) / static_cast<double>(bytes.size())) {
  for (const double part : bytes) before_.push_back(before_.back() + part);
  const double all = before_.back();
  if (!(all > 0.0)) {
    before_.clear();
    return;
  }
  for (double& some : before_) some /= all;
}

double ByteShares::before(double value) const {
  const double parts = static_cast<double>(before_.size() - 1), at = value / part_;
  if (at >= parts) return at / parts;
  const double part = std::floor(at);
  const auto i = static_cast<std::size_t>(part);
  return before_[i] + (at - part) * (before_[i + 1] - before_[i]);
}

double ByteShares::mean(std::size_t begin, std::size_t floats) const {
  if (before_.empty()) return 1.0;
  const double all = part_ * static_cast<double>(before_.size() - 1);
  const double share =
      before(static_cast<double>(begin + floats)) - before(static_cast<double>(begin));
  return share * all / static_cast<double>(floats);
}

ByteShares ByteShares::between(const ByteShares& a, const ByteShares& b, double at) {
  if (a.before_.size() != b.before_.size()) return at < 0.5 ? a : b;
  ByteShares shares = a;
  for (std::size_t i = 0; i < a.before_.size(); ++i) {
    shares.before_[i] += at * (b.before_[i] - a.before_[i]);
  }
  return shares;
}

ByteShares measure_byte_shares(const CodecSpec& spec, std::span<const float> gradient,
                               std::span<const TensorSlot> tensors) {
  constexpr std::size_t kPart = 4096, kMostParts = 64;
  const std::size_t floats = compressed_floats(tensors, gradient.size());
  const std::size_t parts = std::min(floats / kPart, kMostParts);
  if (parts == 0) return {};
  std::vector<float> samples;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::span<const float> sample = gradient.subspan(floats / parts * i, kPart);
    samples.insert(samples.end(), sample.begin(), sample.end());
  }
  const auto codec = make_codec(spec);
  std::vector<std::byte> payload(codec->max_payload_bytes(kPart));
  // The residual is random, as it is after many training steps: anywhere between two quantised
  // values. With such a residual, small gradients take bytes, too, because dropped values add up
  // until they are sent.
  std::vector<float> residual(samples.size());
  const CounterRng places(1, RandomStream::byte_shares);
  std::vector<double> bytes(parts);
  const auto payload_bytes = [&](std::span<const float> values, float* rest, float step) {
    return static_cast<double>(
        codec->encode(values, rest, payload, {.quantiser_step = step}).payload_bytes);
  };
  const auto measure = [&](float step) {
    for (std::size_t i = 0; i < residual.size(); ++i) {
      residual[i] = step * static_cast<float>(places.uniform(i) - 0.5);
    }
    // A payload's head is subtracted, because in a run, segments are larger and their heads matter
    // less. The difference may be below 0, because zeros take fewer bytes than `head`.
    const double head = payload_bytes(std::vector<float>(kPart, step / 8), nullptr, step);
    for (std::size_t i = 0; i < parts; ++i) {
      float* const rest = spec.feedback ? residual.data() + kPart * i : nullptr;
      bytes[i] = std::max(
          0.0, payload_bytes(std::span(samples).subspan(kPart * i, kPart), rest, step) - head);
    }
    return std::accumulate(bytes.begin(), bytes.end(), 0.0);
  };
  const float step = step_for(*codec, samples, measure);
  if (step == 0.0f) return {};
  measure(step);
  return {bytes, floats};
}

CodecCosts exact_costs(const CodecFigures& exact) {
  CodecCosts costs = CodecCosts::exact();
  costs.encode_s_per_float = exact.encode_s;
  costs.decode_s_per_float = exact.decode_s;
  return costs;
}

SimulatedBucket simulated_bucket(const Bucket& bucket, const CodecFigures& figures,
                                 const CodecFigures& exact, std::size_t segment_bytes,
                                 const ByteShares& shares) {
  const CodecSpec& spec = bucket.codec;
  const auto floats = static_cast<double>(bucket.elements);
  SimulatedBucket simulated;
  const bool is_factored = find_codec(spec.name)->is_exchange;
  const std::shared_ptr<const Codec> codec = make_codec(is_factored ? CodecSpec::exact() : spec);
  CodecCosts costs = exact_costs(exact);
  if (!is_factored) {
    costs = {.encode_s_per_float = figures.encode_s,
             .decode_s_per_float = figures.decode_s,
             .payload_bytes = [codec, per_float = figures.payload_bytes, shares,
                               offset = bucket.offset](std::size_t begin, std::size_t n) {
               const auto fixed = codec->fixed_payload_bytes(n);
               if (fixed) return static_cast<double>(*fixed);
               return per_float * shares.mean(offset + begin, n) * static_cast<double>(n);
             }};
  }
  for (const std::size_t elements :
       exchange_kind(spec).sums(spec, bucket.elements, bucket.tensors)) {
    const bool is_second = !simulated.sums.empty();
    simulated.sums.push_back(
        // A bucket that is exchanged only in every k-th step counts in each step with 1/k of its
        // size.
        {.elements = (elements + bucket.every - 1) / bucket.every,
         .segment = segment_floats(segment_bytes, *codec),
         .costs = costs,
         .has_brief_messages = has_few_bits(spec),
         .note_bytes = has_rate(spec) ? sizeof(RateNote) : 0,
         .before_s = floats * (is_second ? figures.second_s : figures.first_s)});
  }
  simulated.after_s = floats * figures.deliver_s;
  return simulated;
}

}  // namespace dp
