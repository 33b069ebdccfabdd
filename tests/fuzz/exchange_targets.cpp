// What ranks send each other: the payloads of every codec, and the messages of every exchange.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "comm/exchange/message_header.hpp"
#include "comm/exchange/segment_exchange.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"
#include "tests/codecs/codec_testing.hpp"
#include "tests/comm/exchange/planned_network.hpp"
#include "tests/fuzz/targets.hpp"

namespace dp::fuzz {
namespace {

using testing_support::PlannedNetwork;

// ---- payloads: the codec's number, whether it adds, the number of floats (12 bits), the payload
// ----

constexpr std::size_t kMostFloats = 4095;

const std::vector<std::unique_ptr<Codec>>& codecs() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Codec>> made;
    for (const std::string& spec : test::all_codec_specs()) {
      made.push_back(make_codec(parse_codec_spec(spec)));
    }
    return made;
  }();
  return all;
}

void read_payload(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kHead = 3;
  if (bytes.size() < kHead) return;
  const Codec& codec = *codecs()[bytes[0] % codecs().size()];
  const std::size_t n = bytes[1] + 256u * (bytes[2] % 16);
  // Of exactly their sizes, so that AddressSanitizer sees what is beyond them.
  const std::vector<std::uint8_t> payload(bytes.begin() + kHead, bytes.end());
  std::vector<float> values(n, 0.0f);
  const auto span = std::as_bytes(std::span(payload));
  ends_in_error_at_most([&] {
    (bytes[2] & 0x80) != 0 ? codec.decode_add(span, values) : codec.decode(span, values);
    for (const float value : values) {
      if (!std::isfinite(value)) __builtin_trap();
    }
  });
}

std::vector<Bytes> payload_seeds() {
  std::vector<Bytes> seeds;
  const auto add = [&](std::size_t c, std::size_t n, EncodeContext context) {
    std::vector<float> values(n), residual(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = std::sin(static_cast<float>(i * i)) * (i % 17 == 0 ? 9.0f : 1.0f);
    }
    std::vector<std::byte> payload(codecs()[c]->max_payload_bytes(n));
    context.step = 1;
    payload.resize(codecs()[c]->encode(values, residual.data(), payload, context).payload_bytes);
    Bytes seed = {static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(n),
                  static_cast<std::uint8_t>(n / 256 + (c % 3 == 0 ? 0x80 : 0))};
    for (const std::byte byte : payload) seed.push_back(static_cast<std::uint8_t>(byte));
    seeds.push_back(seed);
  };
  for (std::size_t c = 0; c < codecs().size(); ++c) {
    const std::size_t n = c % 2 == 0 ? 300 : 70;
    add(c, n, {});
    if (!codecs()[c]->takes_step()) continue;
    for (const unsigned bits : {4u, 8u, 16u, 32u}) {
      add(c, n, {.dense_bits = bits});
      add(c, kMostFloats, {.dense_bits = bits});
    }
    // With the first step a third of the codes are not zero, and the entropy coder has two states.
    // With the second one most are not zero, and it has lanes. With the third one they differ so
    // much that it gives up.
    for (const float step : {1.7f, 0.7f, 0.02f}) add(c, kMostFloats, {.quantiser_step = step});
  }
  return seeds;
}

// ---- messages: three ranks, one bucket and two steps; one message is another one ----

constexpr int kRanks = 3;
constexpr std::size_t kRows = 9, kColumns = 7, kFloats = kRows * kColumns;
constexpr const char* kSpecs[] = {"none",    "q8:block=32",   "topk:ratio=0.1", "ecq",
                                  "ternary", "dgc:ratio=0.1", "powersgd:rank=2"};

// All ranks' exchanges, driven in turn until nothing moves.
class Ranks {
 public:
  Ranks(std::size_t topology, std::size_t spec)
      : network(kRanks, 0), spec_(parse_codec_spec(kSpecs[spec % std::size(kSpecs)])) {
    const TensorSlot tensor{.offset = 0, .rows = kRows, .columns = kColumns};
    const auto topologies = topology_list();
    for (int rank = 0; rank < kRanks; ++rank) {
      Member& member = members_.emplace_back();
      member.gradient.assign(kFloats, 0.25f);
      member.residual.assign(kFloats, 0.0f);
      member.velocity = std::make_unique<LocalVelocity>(kFloats, VelocityOptions{.ranks = kRanks});
      member.made = exchange_kind(spec_).make(
          {.setup = {.transport = &network.transport(rank),
                     .bucket = 7,
                     .stream = 3,
                     .gradient = member.gradient,
                     .residual = spec_.feedback ? member.residual.data() : nullptr,
                     .codec = exact_.get(),
                     .exact = exact_.get(),
                     .seed = 5,
                     .segment = 32,
                     .window = 2,
                     .hosts = hosts_},
           .segment_bytes = 32 * sizeof(float),
           .spec = &spec_,
           .topology = &topologies[topology % topologies.size()],
           .tensors = {&tensor, 1},
           .velocity = member.velocity.get()});
      member.buffers.emplace(member.made.exchange->needs());
    }
  }

  void run(std::uint64_t steps) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (Member& member : members_) {
        member.made.exchange->post_receives(*member.buffers, step);
        member.made.exchange->prepare();
        member.made.exchange->start();
      }
      for (int still = 0; still < 4;) {
        bool has_moved = network.deliver();
        for (Member& member : members_) has_moved = member.made.exchange->progress() || has_moved;
        still = has_moved ? 0 : still + 1;
      }
      for (Member& member : members_) {
        if (!member.made.exchange->done()) return;
      }
    }
  }

  PlannedNetwork network;

 private:
  struct Member {
    std::vector<float> gradient, residual;
    std::unique_ptr<LocalVelocity> velocity;
    MadeExchange made;
    std::optional<BufferSet> buffers;
  };
  CodecSpec spec_;
  std::unique_ptr<Codec> exact_ = make_codec(parse_codec_spec("none"));
  std::vector<int> hosts_ = {0, 0, 1};
  std::vector<Member> members_;
};

// The topology's number, the codec's, the message's; then the message without its seal, which is
// always right: behind it everything must be expected. With 0x80 in the third byte, only what
// follows the header, which is then the right one.
void read_message(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kHead = 3;
  if (bytes.size() < kHead) return;
  const auto message = std::as_bytes(bytes.subspan(kHead));
  ends_in_error_at_most([&] {
    Ranks ranks(bytes[0], bytes[1]);
    ranks.network.on_send = [&, count = 0](PlannedNetwork::Message& sent) mutable {
      if (count++ != bytes[2] % 64) return PlannedNetwork::Fate::arrives;
      const std::size_t kept =
          (bytes[2] & 0x80) != 0 ? std::min(kMessageHeaderBytes, sent.bytes.size()) : 0;
      sent.bytes.resize(kept);
      sent.bytes.insert(sent.bytes.end(), message.begin(), message.end());
      sent.bytes.resize(sent.bytes.size() + kSealBytes);
      seal(sent.bytes);
      return PlannedNetwork::Fate::arrives;
    };
    ranks.run(2);
  });
}

std::vector<Bytes> message_seeds() {
  std::vector<Bytes> seeds;
  const std::size_t topologies = topology_list().size();
  for (std::size_t spec = 0; spec < std::size(kSpecs); ++spec) {
    const std::size_t topology = spec % topologies;
    Ranks ranks(topology, spec);
    std::uint8_t count = 0;
    ranks.network.on_send = [&](PlannedNetwork::Message& sent) {
      if (count % 4 == 0 && count < 64) {
        Bytes seed = {static_cast<std::uint8_t>(topology), static_cast<std::uint8_t>(spec), count};
        for (const std::byte byte : std::span(sent.bytes).first(sent.bytes.size() - kSealBytes)) {
          seed.push_back(static_cast<std::uint8_t>(byte));
        }
        seeds.push_back(seed);
        if (sent.bytes.size() > kMessageFrameBytes) {
          seed[2] |= 0x80;
          seed.erase(seed.begin() + 3, seed.begin() + 3 + kMessageHeaderBytes);
          seeds.push_back(seed);
        }
      }
      ++count;
      return PlannedNetwork::Fate::arrives;
    };
    ranks.run(2);
  }
  return seeds;
}

constexpr Target kTargets[] = {{"payload", read_payload, payload_seeds},
                               {"message", read_message, message_seeds, 6}};

}  // namespace

std::span<const Target> exchange_targets() { return kTargets; }

}  // namespace dp::fuzz
