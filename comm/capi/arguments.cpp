#include "comm/capi/arguments.hpp"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "comm/network/link_probe.hpp"
#include "comm/rate/compress_choice.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/base/error.hpp"

namespace dp::capi {
namespace {

constexpr std::uint64_t kMostTracedSteps = 1000;

std::vector<std::string> parts_of(const char* list, char separator) {
  std::vector<std::string> parts;
  std::string_view rest = list == nullptr ? "" : list;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(separator), rest.size());
    if (end > 0) parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return parts;
}

std::vector<std::pair<std::string, CodecSpec>> tensor_codecs(const dptrain_comm_options& given) {
  std::vector<std::pair<std::string, CodecSpec>> codecs;
  for (const std::string& one : parts_of(given.codecs, ';')) {
    const std::size_t equals = one.find('=');
    if (equals == 0 || equals >= one.size() - 1) {
      throw_error(ErrorKind::usage,
                  "codecs {}: must be a slot's name, = and a codec, as in wte.*=q8", one);
    }
    codecs.emplace_back(one.substr(0, equals), parse_codec_spec(one.substr(equals + 1)));
  }
  for (const std::string& name : parts_of(given.exact, ',')) {
    codecs.emplace_back(name, CodecSpec::exact());
  }
  return codecs;
}

// Checks the factor of a running mean.
void check_factor(std::string_view name, double value) {
  if (value >= 0.0 && value < 1.0) return;
  throw_error(ErrorKind::usage, "{} must be 0 or more and below 1, but is {}", name, value);
}

void check_optimizer(const dptrain_comm_options& given) {
  if (given.optimizer < DPTRAIN_COMM_ANY_OPTIMIZER || given.optimizer > DPTRAIN_COMM_ADAM) {
    throw_error(ErrorKind::usage,
                "optimizer must be DPTRAIN_COMM_ANY_OPTIMIZER (0), DPTRAIN_COMM_SGD (1) or "
                "DPTRAIN_COMM_ADAM (2), but is {}",
                given.optimizer);
  }
  if (given.optimizer == DPTRAIN_COMM_SGD) check_factor("momentum", given.momentum);
  if (given.optimizer != DPTRAIN_COMM_ADAM) return;
  check_factor("beta1", given.beta1);
  check_factor("beta2", given.beta2);
  if (!(given.epsilon > 0.0 && std::isfinite(given.epsilon))) {
    throw_error(ErrorKind::usage, "epsilon {}: must be finite and above 0", given.epsilon);
  }
}

// Adapts the codec to the optimiser, and sets momentum or Adam's parameters.
void set_optimizer(const dptrain_comm_options& given, GradientSyncOptions& options) {
  switch (given.optimizer) {
    case DPTRAIN_COMM_SGD:
      options.compress = options.compress.with_velocities(given.momentum > 0.0);
      options.momentum = static_cast<float>(given.momentum);
      options.has_nesterov = given.has_nesterov != 0;
      break;
    case DPTRAIN_COMM_ADAM:
      options.compress = options.compress.with_velocities(true).for_adam();
      options.adam = {.beta1 = given.beta1, .beta2 = given.beta2, .epsilon = given.epsilon};
      break;
    default:
      options.compress = options.compress.for_adam();
  }
}

}  // namespace

void require(bool holds, std::string_view sentence) {
  if (!holds) throw_error(ErrorKind::usage, "{}", sentence);
}

dptrain_comm_options default_options() {
  return {.struct_bytes = sizeof(dptrain_comm_options),
          .compress = "auto",
          .topology = nullptr,
          .exact = nullptr,
          .seed = 0,
          .bucket_bytes = 0,
          .timeout_s = Communicator::kDefaultTimeout_s,
          .link_bit_per_s = 0.0,
          .trace = nullptr,
          .trace_first = 5,
          .trace_steps = 20,
          .optimizer = DPTRAIN_COMM_ANY_OPTIMIZER,
          .has_nesterov = 0,
          .momentum = 0.9,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .epsilon = 1e-8,
          .codecs = nullptr,
          .shards = 1};
}

Layout lay_out(const dptrain_comm_slot* slots, std::size_t count) {
  require(slots != nullptr && count > 0, "an exchange needs one slot or more");
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_partition(order, [slots](std::size_t i) { return slots[i].is_1d == 0; });
  Layout layout{.tensors = {}, .tensor_of_slot = std::vector<std::size_t>(count)};
  for (const std::size_t i : order) {
    const dptrain_comm_slot& slot = slots[i];
    constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
    if (slot.rows == 0 || slot.columns == 0 || slot.rows > kMost / slot.columns) {
      throw_error(ErrorKind::usage, "slot {} has {} x {} values; allowed: 1 to 2^40", i, slot.rows,
                  slot.columns);
    }
    layout.tensor_of_slot[i] = layout.tensors.size();
    layout.tensors.push_back({.offset = layout.elements,
                              .rows = slot.rows,
                              .columns = slot.columns,
                              .is_1d = slot.is_1d != 0,
                              .name = slot.name == nullptr ? "" : slot.name});
    layout.elements += layout.tensors.back().elements();
  }
  return layout;
}

void check(const dptrain_comm_options& given) {
  require(given.compress != nullptr, "compress is NULL; it must name a codec, such as q8 or auto");
  if (!(given.timeout_s > 0.0)) {
    throw_error(ErrorKind::usage, "timeout_s {}: must be above 0", given.timeout_s);
  }
  if (!(given.link_bit_per_s >= 0.0 && std::isfinite(given.link_bit_per_s))) {
    throw_error(ErrorKind::usage, "link_bit_per_s {}: must be finite and 0 or more",
                given.link_bit_per_s);
  }
  const CodecSpec codec = parse_compress(given.compress).codec;
  static_cast<void>(tensor_codecs(given));
  check_optimizer(given);
  if (exchange_kind(codec).has_momentum) {
    throw_error(ErrorKind::usage,
                "{} applies its own momentum; topk sends the same values without momentum",
                given.compress);
  }
  if (takes_momentum(codec) && given.optimizer == DPTRAIN_COMM_ANY_OPTIMIZER) {
    throw_error(ErrorKind::usage,
                "{} exchanges the optimiser's steps: set optimizer, or use velocity=off",
                given.compress);
  }
  if (given.topology != nullptr) static_cast<void>(find_topology(given.topology));
  if (given.shards < 1) throw_error(ErrorKind::usage, "shards 0: must be 1 or more");
  if (given.trace != nullptr && given.shards > 1) {
    throw_error(ErrorKind::usage, "trace {}: not available with {} shards", given.trace,
                given.shards);
  }
  if (given.trace != nullptr && (given.trace_steps < 1 || given.trace_steps > kMostTracedSteps)) {
    throw_error(ErrorKind::usage, "trace_steps {}: must be 1 to {}", given.trace_steps,
                kMostTracedSteps);
  }
}

GradientSyncOptions sync_options(const dptrain_comm_options& given, Communicator& comm) {
  GradientSyncOptions options;
  options.compress = parse_compress(given.compress);
  options.ranks = static_cast<std::size_t>(comm.size());
  set_optimizer(given, options);
  const CodecSpec& codec = options.compress.codec;
  LinkProbe link{.bytes_per_s = given.link_bit_per_s / 8.0, .uncertainty = 0.0};
  if (given.link_bit_per_s == 0.0) link = probe_link(comm);

  options.tensor_codecs = tensor_codecs(given);
  options.is_one_host = comm.local_size() == comm.size();
  options.link_bytes_per_s = link.bytes_per_s;
  options.link_latency_s = link.latency_s;
  options.reducer.seed = given.seed;
  options.reducer.comm_timeout_s = given.timeout_s;
  const std::string_view suitable = suitable_topology(codec, static_cast<std::size_t>(comm.size()));
  options.reducer.topology = given.topology != nullptr ? given.topology
                             : suitable.empty()        ? "ring"
                                                       : std::string(suitable);
  if (given.bucket_bytes > 0) {
    options.bucket_bytes = given.bucket_bytes;
  } else if (link.bytes_per_s > 0.0) {
    options.choose_bucket_bytes = [link, ranks = options.ranks](std::span<const TensorSlot> tensors,
                                                                const CodecSpec& chosen) {
      return choose_bucket_bytes(link, ranks, chosen, tensors);
    };
  }
  if (link.bytes_per_s > 0.0) {
    options.reducer.window = choose_window(link, codec, options.reducer.segment_bytes);
  }
  return options;
}

}  // namespace dp::capi
