#include "comm/capi/dptrain_comm.h"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/capi/arguments.hpp"
#include "comm/capi/saved_state.hpp"
#include "comm/communicator.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi_runtime.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/state.hpp"

namespace {

using dp::capi::require;

constexpr const char* kLibrary = "dptrain_comm";

// What the process has once. The exchange uses the communicator, which uses MPI.
struct Process {
  std::optional<dp::MpiRuntime> mpi;  // if this library has started it
  std::optional<dp::Communicator> comm;
  bool has_exchange = false;
};

Process& process() {
  static auto* const the_one = new Process;  // never destroyed: MPI may not be ended by exit()
  return *the_one;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

// Runs f and turns what it throws into a result.
template <class F>
int result_of(F f) {
  try {
    f();
    return DPTRAIN_COMM_OK;
  } catch (...) {
    return dp::exit_code_of_current_exception(last_error());
  }
}

dp::Communicator& communicator() {
  require(process().comm.has_value(), "dptrain_comm_init has not been called");
  return *process().comm;
}

void start(MPI_Comm parent) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    dp::throw_error(
        dp::ErrorKind::usage,
        "MPI was started with thread level {}; dptrain_comm needs MPI_THREAD_SERIALIZED, "
        "{}, or a higher one",
        provided, MPI_THREAD_SERIALIZED);
  }
  process().comm.emplace(parent);
  process().comm->set_warn(
      [](const std::string& text) { std::fprintf(stderr, "%s: %s\n", kLibrary, text.c_str()); });
}

}  // namespace

struct dptrain_comm {
  dptrain_comm(dp::capi::Layout layout_of_slots, const dptrain_comm_options& options,
               dp::Communicator& comm)
      : layout(std::move(layout_of_slots)),
        gradient(layout.elements),
        sync(nullptr, gradient, layout.tensors, dp::capi::sync_options(options, comm)) {
    comm.set_timeout_s(options.timeout_s);
    sync.connect(comm);
    sync.begin_epoch(0);
  }

  [[nodiscard]] std::size_t tensor(std::size_t slot) const {
    if (slot >= layout.tensor_of_slot.size()) {
      dp::throw_error(dp::ErrorKind::usage, "slot {}: there are {}", slot,
                      layout.tensor_of_slot.size());
    }
    return layout.tensor_of_slot[slot];
  }
  void require_step(bool is_wanted) const {
    require(is_in_step == is_wanted, is_wanted ? "no step has begun" : "a step is under way");
  }
  [[nodiscard]] dp::StateList state() {
    require_step(false);
    dp::StateList list;
    list.value("step", step);
    sync.list_state(list);
    return list;
  }

  dp::capi::Layout layout;
  std::vector<float> gradient;
  dp::GradientSync sync;
  std::vector<bool> is_ready = std::vector<bool>(layout.tensors.size());
  std::size_t ready = 0;
  std::uint64_t step = 0;
  bool is_in_step = false;
  std::vector<dp::CommCost> taken;  // of buckets, by the last dptrain_comm_get_statistics
  std::string description;
};

namespace {

// The same for a function of an exchange.
template <class F>
int result_on(dptrain_comm* exchange, F f) {
  return result_of([&] {
    require(exchange != nullptr, "exchange is NULL");
    f(*exchange);
  });
}

}  // namespace

// ---- the process --------------------------------------------------------------------------------

int dptrain_comm_init() {
  return result_of([] {
    require(!process().comm, "dptrain_comm_init was called before");
    int is_running = 0;
    MPI_Initialized(&is_running);
    if (is_running == 0) {
      constexpr bool kIsAlone = false;  // the program may have connections of its own
      process().mpi.emplace(nullptr, nullptr,
                            dp::WatchdogOptions{.program = kLibrary, .timeout_option = {}},
                            kIsAlone);
    }
    start(MPI_COMM_WORLD);
  });
}

int dptrain_comm_init_with(std::int32_t fortran_handle) {
  return result_of([fortran_handle] {
    require(!process().comm, "dptrain_comm_init was called before");
    int is_running = 0;
    MPI_Initialized(&is_running);
    require(is_running != 0, "MPI is not running; dptrain_comm_init starts it");
    start(MPI_Comm_f2c(fortran_handle));
  });
}

int dptrain_comm_finalize() {
  return result_of([] {
    require(!process().has_exchange, "the exchange must be destroyed before");
    process().comm.reset();
    process().mpi.reset();
  });
}

void dptrain_comm_abort(int exit_code, const char* reason) {
  if (process().mpi) process().mpi->abort(exit_code, kLibrary, reason == nullptr ? "" : reason);
  if (reason != nullptr) std::fprintf(stderr, "%s: %s\n", kLibrary, reason);
  int is_running = 0;
  MPI_Initialized(&is_running);
  if (is_running != 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

int dptrain_comm_rank() { return process().comm ? process().comm->rank() : -1; }
int dptrain_comm_size() { return process().comm ? process().comm->size() : -1; }

int dptrain_comm_broadcast(void* bytes, std::size_t size) {
  return result_of([=] {
    require(!process().has_exchange, "an exchange exists; broadcast before it is made");
    std::string text(static_cast<const char*>(bytes), size);
    communicator().broadcast(text);
    if (text.size() != size) {
      dp::throw_error(dp::ErrorKind::usage, "rank 0 broadcasts {} bytes, this rank wants {}",
                      text.size(), size);
    }
    std::memcpy(bytes, text.data(), size);
  });
}

// ---- an exchange --------------------------------------------------------------------------------

void dptrain_comm_defaults(dptrain_comm_options* options) {
  if (options != nullptr) *options = dp::capi::default_options();
}

int dptrain_comm_create(const dptrain_comm_slot* slots, std::size_t count,
                        const dptrain_comm_options* options, dptrain_comm** exchange) {
  return result_of([&] {
    require(exchange != nullptr, "exchange is NULL");
    *exchange = nullptr;
    dp::Communicator& comm = communicator();
    require(!process().has_exchange, "there is an exchange already; destroy it before");
    const dptrain_comm_options chosen =
        options == nullptr ? dp::capi::default_options()
                           : dp::capi::read_struct(*options, dp::capi::default_options());
    *exchange = new dptrain_comm(dp::capi::lay_out(slots, count), chosen, comm);
    process().has_exchange = true;
  });
}

void dptrain_comm_destroy(dptrain_comm* exchange) {
  if (exchange == nullptr) return;
  delete exchange;
  process().has_exchange = false;
}

float* dptrain_comm_values(dptrain_comm* exchange, std::size_t slot) {
  float* values = nullptr;
  static_cast<void>(result_on(exchange, [&](dptrain_comm& it) {
    values = it.gradient.data() + it.layout.tensors[it.tensor(slot)].offset;
  }));
  return values;
}

int dptrain_comm_begin_step(dptrain_comm* exchange, double progress) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    it.sync.begin_step(it.step, progress);
    it.is_in_step = true;
    it.ready = 0;
    it.is_ready.assign(it.is_ready.size(), false);
  });
}

int dptrain_comm_ready(dptrain_comm* exchange, std::size_t slot) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(true);
    const std::size_t tensor = it.tensor(slot);
    if (it.is_ready[tensor]) {
      dp::throw_error(dp::ErrorKind::usage, "slot {} was reported as ready before in this step",
                      slot);
    }
    it.is_ready[tensor] = true;
    ++it.ready;
    it.sync.tensor_final(tensor);
  });
}

int dptrain_comm_finish_step(dptrain_comm* exchange, int* all_finite) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(true);
    const std::size_t count = it.is_ready.size();
    if (it.ready < count) {
      dp::throw_error(dp::ErrorKind::usage, "only {} of {} slots have been reported as ready",
                      it.ready, count);
    }
    const dp::StepVerdict verdict = it.sync.finish_step();
    it.is_in_step = false;
    ++it.step;
    if (all_finite != nullptr) *all_finite = verdict.finite ? 1 : 0;
  });
}

int dptrain_comm_get_statistics(dptrain_comm* exchange, dptrain_comm_statistics* statistics) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(statistics != nullptr, "statistics is NULL");
    it.require_step(false);
    const std::uint64_t size = dp::capi::read_struct(*statistics, {}).struct_bytes;
    dp::CommTimes times = it.sync.reducer().take_times();
    it.taken = std::move(times.buckets);
    const dp::CommCost& cost = times.total;
    const dptrain_comm_statistics taken = {.struct_bytes = size,
                                           .sent_bytes = cost.sent_bytes,
                                           .received_bytes = cost.received_bytes,
                                           .comm_s = cost.comm_s,
                                           .encode_s = cost.encode_s,
                                           .decode_s = cost.decode_s,
                                           .peer_wait_s = cost.peer_wait_s,
                                           .wire_s = cost.wire_s,
                                           .bits = it.sync.rate_report().mean_bits()};
    std::memcpy(statistics, &taken, std::min<std::size_t>(sizeof taken, size));
  });
}

std::size_t dptrain_comm_bucket_count(dptrain_comm* exchange) {
  std::size_t count = 0;
  static_cast<void>(
      result_on(exchange, [&](dptrain_comm& it) { count = it.sync.buckets().size(); }));
  return count;
}

int dptrain_comm_get_bucket_statistics(dptrain_comm* exchange, std::size_t bucket,
                                       dptrain_comm_bucket_statistics* statistics) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(statistics != nullptr, "statistics is NULL");
    require(!it.taken.empty(), "dptrain_comm_get_statistics has not been called");
    if (bucket >= it.taken.size()) {
      dp::throw_error(dp::ErrorKind::usage, "bucket {}: there are {}", bucket, it.taken.size());
    }
    const std::uint64_t size = dp::capi::read_struct(*statistics, {}).struct_bytes;
    const dp::CommCost& cost = it.taken[bucket];
    const dptrain_comm_bucket_statistics taken = {.struct_bytes = size,
                                                  .values = it.sync.buckets()[bucket].elements,
                                                  .sent_bytes = cost.sent_bytes,
                                                  .encode_s = cost.encode_s,
                                                  .decode_s = cost.decode_s,
                                                  .peer_wait_s = cost.peer_wait_s,
                                                  .wire_s = cost.wire_s,
                                                  .error_squares = cost.sampled.error_squares,
                                                  .value_squares = cost.sampled.value_squares,
                                                  .residual_squares = cost.residual_squares};
    std::memcpy(statistics, &taken, std::min<std::size_t>(sizeof taken, size));
  });
}

int dptrain_comm_gather(dptrain_comm* exchange, const void* bytes, std::size_t size, void* all) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    require(bytes != nullptr, "bytes is NULL");
    require(all != nullptr || dptrain_comm_rank() != 0, "all is NULL on rank 0");
    it.sync.reducer().run([=](dp::Communicator& comm) {
      const std::vector<std::byte> gathered =
          comm.gather_rows(std::span<const std::byte>(static_cast<const std::byte*>(bytes), size));
      if (comm.rank() == 0) std::memcpy(all, gathered.data(), gathered.size());
    });
  });
}

const char* dptrain_comm_describe(dptrain_comm* exchange) {
  const int result = result_on(exchange, [](dptrain_comm& it) {
    std::string text;
    for (std::size_t b = 0; b < it.sync.buckets().size(); ++b) {
      const dp::Bucket& bucket = it.sync.buckets()[b];
      text += fmt::format(
          "{} to {}, {} values, {}, {}{}{}\n", it.layout.tensors[bucket.first_tensor].name,
          it.layout.tensors[bucket.end_tensor - 1].name, bucket.elements, bucket.codec,
          it.sync.reducer().topology_of(b).name, bucket.why.empty() ? "" : ", ", bucket.why);
    }
    it.description = std::move(text);
  });
  return result == DPTRAIN_COMM_OK ? exchange->description.c_str() : nullptr;
}

int dptrain_comm_compare(dptrain_comm* exchange, const float* values, std::size_t count) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    it.sync.reducer().run([=](dp::Communicator& comm) {
      static_cast<void>(dp::agree_on_hash(comm, {values, count}));
    });
  });
}

// ---- its state ----------------------------------------------------------------------------------

std::size_t dptrain_comm_state_bytes(dptrain_comm* exchange) {
  std::size_t size = 0;
  static_cast<void>(
      result_on(exchange, [&](dptrain_comm& it) { size = dp::saved_bytes(it.state()); }));
  return size;
}

int dptrain_comm_save_state(dptrain_comm* exchange, void* bytes, std::size_t size) {
  return result_on(exchange, [=](dptrain_comm& it) {
    dp::save_state(it.state(), {static_cast<std::byte*>(bytes), size});
  });
}

int dptrain_comm_load_state(dptrain_comm* exchange, const void* bytes, std::size_t size) {
  return result_on(exchange, [=](dptrain_comm& it) {
    dp::load_state(it.state(), {static_cast<const std::byte*>(bytes), size});
  });
}

const char* dptrain_comm_last_error() { return last_error().c_str(); }

const char* dptrain_comm_version() { return DPTRAIN_COMM_VERSION; }
