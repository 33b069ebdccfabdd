#include "comm/capi/exchange.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

namespace dp::capi {
namespace {

std::unique_ptr<ExchangeTrace> trace_of(const dptrain_comm_options& options, const Layout& layout,
                                        Communicator& comm) {
  if (options.trace == nullptr) return nullptr;
  return std::make_unique<ExchangeTrace>(options, layout.tensors, comm);
}

GradientSyncOptions with_trace(GradientSyncOptions options, ExchangeTrace* trace) {
  if (trace != nullptr) options.reducer.trace = trace->exchange();
  return options;
}

void warn(const std::string& text) { std::fprintf(stderr, "dptrain_comm: %s\n", text.c_str()); }

std::unique_ptr<float[], void (*)(void*)> zeros(std::size_t count) {
  auto* const memory = static_cast<float*>(std::calloc(count, sizeof(float)));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, std::free};
}

}  // namespace

std::string& last_error() {
  thread_local std::string text;
  return text;
}

}  // namespace dp::capi

dptrain_comm::dptrain_comm(dp::capi::Layout layout_of_slots, const dptrain_comm_options& options,
                           dp::Communicator& parent)
    : comm(std::make_unique<dp::Communicator>(parent.handle())),
      layout(std::move(layout_of_slots)),
      gradient(dp::capi::zeros(layout.elements)),
      trace(dp::capi::trace_of(options, layout, *comm)),
      sync(nullptr, {gradient.get(), layout.elements}, layout.tensors,
           dp::capi::with_trace(dp::capi::sync_options(options, *comm), trace.get())) {
  comm->set_warn(dp::capi::warn);
  comm->set_timeout_s(options.timeout_s);
  sync.connect(*comm);
  sync.begin_epoch(0);
}

dptrain_comm::~dptrain_comm() {
  // Messages of an unfinished step may still arrive on the communicator, so it is not freed.
  if (is_in_step) static_cast<void>(comm.release());
}

std::size_t dptrain_comm::tensor(std::size_t slot) const {
  if (slot >= layout.tensor_of_slot.size()) {
    dp::throw_error(dp::ErrorKind::usage, "slot {}: there are {}", slot,
                    layout.tensor_of_slot.size());
  }
  return layout.tensor_of_slot[slot];
}

void dptrain_comm::require_step(bool is_wanted) const {
  dp::capi::require(is_in_step == is_wanted,
                    is_wanted ? "no step has begun" : "a step is under way");
}

dp::StatefulExchange dptrain_comm::stateful(const dp::StateList& list) const {
  std::vector<dp::StatefulTensor> tensors;
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    const dp::TensorSlot& tensor = layout.tensors[t];
    tensors.push_back({.name = tensor.name,
                       .rows = tensor.rows,
                       .columns = tensor.columns,
                       .makes_step = sync.has_momentum(t) ? 1U : 0U});
  }
  return {.state = list,
          .tensors = std::move(tensors),
          .here = {.rank = static_cast<std::uint64_t>(dptrain_comm_rank()),
                   .ranks = static_cast<std::uint64_t>(dptrain_comm_size()),
                   .loss_scale = sync.loss_scale()}};
}

bool dptrain_comm::has_leaders() {
  for (std::size_t b = 0; b < sync.buckets().size(); ++b) {
    if (sync.reducer().topology_of(b).name == std::string_view("hierarchical")) return true;
  }
  return false;
}

void dptrain_comm::agree_on_step() {
  const std::vector<std::uint64_t> steps =
      sync.reducer().run([this](dp::Communicator& its) { return its.all_gather(step); });
  const auto other =
      std::ranges::find_if(steps, [&](std::uint64_t of_rank) { return of_rank != steps.front(); });
  if (other == steps.end()) return;
  const auto begins = [&](std::size_t rank) {
    return steps[rank] == 0 ? fmt::format("rank {} begins at step 0", rank)
                            : fmt::format("rank {} continues from step {}", rank, steps[rank]);
  };
  dp::throw_error(
      dp::ErrorKind::data,
      "{}, but {}: every rank must load its state of the same step, or no rank may load a state",
      begins(0), begins(static_cast<std::size_t>(other - steps.begin())));
}

dp::StateList dptrain_comm::state() {
  require_step(false);
  dp::StateList list;
  list.value("step", step);
  sync.list_state(list);
  return list;
}
