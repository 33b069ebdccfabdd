#include "comm/topologies/exchange_kinds.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "comm/topologies/powersgd.hpp"
#include "comm/topologies/velocity_exchange.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// With at most kFewBits planned bits per value, segments are kFewBitsFactor times as long. At 0.03
// bits the usual segment would be a payload of 250 bytes, with about 160 bytes of headers around it
// (LinkModel::wire_bytes).
constexpr double kFewBits = 0.1;
constexpr std::size_t kFewBitsFactor = 16;

using Tensors = std::span<const TensorSlot>;

MadeExchange make_encoded(const ExchangeRequest& request) {
  const CodecSpec& spec = *request.spec;
  MadeExchange made;
  made.codec = request.device == nullptr ? make_codec(spec) : make_codec(spec, *request.device);
  DP_ASSERT(made.codec != nullptr,
            "{} does not run on this device, or is an exchange without a row in exchange_kinds.cpp",
            spec.text());
  ExchangeSetup setup = request.setup;
  setup.codec = made.codec.get();
  setup.segment = segment_floats(request.segment_bytes, *made.codec);
  setup.has_brief_messages = has_few_bits(spec);
  made.exchange = request.topology->make(setup);
  return made;
}

std::vector<std::size_t> whole_bucket(const CodecSpec&, std::size_t elements, Tensors) {
  return {elements};
}

MadeExchange make_dgc(const ExchangeRequest& request) {
  MadeExchange made = make_encoded(request);
  made.exchange = make_velocity_exchange(
      {.setup = request.setup,
       .inner = std::move(made.exchange),
       .velocity = request.velocity,
       // Ranks that encode nothing have no residual that shows what they have sent, so the
       // delivered sum decides which velocities are masked.
       .mask = request.topology->encodes_on_all_ranks ? VelocityMask::by_residual
                                                      : VelocityMask::by_delivered});
  return made;
}

MadeExchange make_factored(const ExchangeRequest& request) {
  DP_ASSERT(request.device == nullptr, "{} does not run on this device", request.spec->text());
  return {.codec = nullptr,
          .exchange = make_powersgd({.exchange = request.setup,
                                     .tensors = request.tensors,
                                     .factor_rank = request.spec->whole("rank"),
                                     .topology = request.topology})};
}

std::vector<std::size_t> factors(const CodecSpec& spec, std::size_t, Tensors tensors) {
  const PowerSgdPlan plan = plan_powersgd(tensors, spec.whole("rank"));
  std::vector<std::size_t> sums = {plan.first_floats};
  if (plan.second_floats > 0) sums.push_back(plan.second_floats);
  return sums;
}

constexpr ExchangeKind kEncoded = {
    .streams = 1, .has_momentum = false, .make = make_encoded, .sums = whole_bucket};

constexpr std::pair<std::string_view, ExchangeKind> kOthers[] = {
    {"dgc", {.streams = 1, .has_momentum = true, .make = make_dgc, .sums = whole_bucket}},
    {"powersgd", {.streams = 2, .has_momentum = false, .make = make_factored, .sums = factors}},
};

}  // namespace

std::size_t most_streams() {
  std::size_t most = kEncoded.streams;
  for (const auto& other : kOthers) most = std::max(most, other.second.streams);
  return most;
}

const ExchangeKind& exchange_kind(const CodecSpec& spec) {
  for (const auto& [name, kind] : kOthers) {
    if (name == spec.name) return kind;
  }
  return kEncoded;
}

bool takes_momentum(const CodecSpec& spec) {
  if (exchange_kind(spec).has_momentum) return true;
  return find_codec(spec.name)->find("velocity") != nullptr && !spec.has_choice("velocity", "off");
}

std::size_t segment_floats(std::size_t segment_bytes, const Codec& codec) {
  std::size_t floats = std::max<std::size_t>(segment_bytes / sizeof(float), 1);
  if (has_few_bits(codec.spec())) floats *= kFewBitsFactor;
  return (floats + codec.block() - 1) / codec.block() * codec.block();
}

bool has_few_bits(const CodecSpec& codec) {
  const auto bits = codec.settings.find("bits");
  return bits != codec.settings.end() && bits->second > 0.0 && bits->second <= kFewBits;
}

}  // namespace dp
