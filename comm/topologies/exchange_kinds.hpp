// The kinds of exchanges. For most codecs the run's topology carries the encoded values. A codec
// that needs another kind of exchange has a row in the list of exchange_kinds.cpp; no other code
// compares codec names.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/topologies/buckets.hpp"
#include "comm/topologies/topology.hpp"
#include "comm/topologies/velocity.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// The inputs for making the exchange of one bucket. Everything that a request refers to, except
// `tensors`, outlives the exchange.
struct ExchangeRequest {
  // A complete setup for the codec `exact` (the codec "none", for values in the same memory). The
  // segment size is for `exact`, too.
  ExchangeSetup setup;
  std::size_t segment_bytes = 256u << 10;  // of fp32; rounded up to whole blocks of the codec
  const CodecSpec* spec = nullptr;
  const Topology* topology = nullptr;
  std::span<const TensorSlot> tensors = {};  // the bucket's; needed only during the call
  Device* device = nullptr;                  // the device that holds the values; null: host memory
  // For kinds that take the optimiser's momentum (dgc).
  LocalMomentum* velocity = nullptr;
};

struct MadeExchange {
  std::unique_ptr<Codec> codec;  // the exchange's codec; null: `exact`
  std::unique_ptr<Exchange> exchange;
};

struct ExchangeKind {
  std::size_t streams = 1;    // message streams, numbered from ExchangeSetup::stream on
  bool has_momentum = false;  // it needs ExchangeRequest::velocity
  MadeExchange (*make)(const ExchangeRequest&) = nullptr;
  // The lengths, in floats, of the sums that the topology carries one after the other.
  std::vector<std::size_t> (*sums)(const CodecSpec& spec, std::size_t elements,
                                   std::span<const TensorSlot> tensors) = nullptr;
};

// The largest number of streams that a kind of exchange needs.
[[nodiscard]] std::size_t most_streams();
[[nodiscard]] const ExchangeKind& exchange_kind(const CodecSpec& spec);

// Whether exchanges of that codec apply the optimiser's momentum themselves: dgc, and ecq with
// velocity=. Their gradients must already include weight decay.
[[nodiscard]] bool takes_momentum(const CodecSpec& spec);

// The length of a segment in floats, for ExchangeShape::segment: segment_bytes, rounded up to whole
// blocks of the codec, or several times as much if few bits are planned.
[[nodiscard]] std::size_t segment_floats(std::size_t segment_bytes, const Codec& codec);

// Whether the codec plans at most 0.1 bits a value (bits=). Headers are then a large part of the
// bytes.
[[nodiscard]] bool has_few_bits(const CodecSpec& codec);

}  // namespace dp
