// Outline: each C function wraps its body in result_of() or result_on() (exchange.hpp), which turn
// exceptions into result codes. The objects of the process (MPI, communicator, list of exchanges)
// come first, then init and finalize, create and the calls of a step, reports, and the saved state.
// GradientSync does the work; arguments.cpp, observation.cpp and saved_state.cpp convert between
// its types and those of C.
#include "comm/capi/dptrain_comm.h"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/capi/arguments.hpp"
#include "comm/capi/child_of_rank.hpp"
#include "comm/capi/exchange.hpp"
#include "comm/capi/observation.hpp"
#include "comm/capi/same_arguments.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/runtime/foreign_launcher.hpp"
#include "comm/mpi/runtime/mpi_runtime.hpp"
#include "comm/replica_hash.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/standard_streams.hpp"
#include "kernels/base/state.hpp"

namespace {

using dp::capi::require;
using dp::capi::result_of;
using dp::capi::result_on;

constexpr const char* kLibrary = "dptrain_comm";

// The objects of which a process has only one. Each exchange has its own duplicate of the
// communicator for its thread. `comm` and a duplicate are in use at the same time only if MPI
// supports several threads.
struct Process {
  std::optional<dp::MpiRuntime> mpi;  // set if this library has started MPI
  std::optional<dp::Communicator> comm;
  std::vector<dptrain_comm*> exchanges;
  bool has_lost_step = false;  // an exchange was destroyed in a step: its messages may still arrive
};

Process& process() {
  static auto* const the_one = new Process;  // never destroyed, since exit() must not end MPI
  return *the_one;
}

dp::Communicator& communicator() {
  require(process().comm.has_value(), "dptrain_comm_init has not been called");
  return *process().comm;
}

// This program's command line from /proc, for messages that advise starting it by mpirun. "PROGRAM"
// if the command line is not known, as in a worker of Python's multiprocessing.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  constexpr std::size_t kMost = 200;
  const bool is_worker = text.find("multiprocessing-fork") != std::string::npos;
  return text.empty() || text.size() > kMost || is_worker ? "PROGRAM" : text;
}

// Collective. Throws Error(usage) if a launcher's variables disagree with MPI
// (foreign_launcher.hpp). The variables may count either the ranks of MPI_COMM_WORLD or those of
// `comm`, because a program that splits its ranks may set a WORLD_SIZE for each group.
void require_launcher_of_mpi(MPI_Comm comm) {
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  const auto complaint = [&](MPI_Comm ranks) {
    dp::MpiPlace place;
    MPI_Comm_rank(ranks, &place.rank);
    MPI_Comm_size(ranks, &place.ranks);
    MPI_Comm_size(MPI_COMM_WORLD, &place.world_ranks);
    return dp::foreign_launcher(variable, place, command_line());
  };
  const auto of_group = complaint(comm);
  const bool is_right = !of_group || !complaint(MPI_COMM_WORLD);
  std::optional<std::string> sentence;
  try {
    process().comm->agree(is_right, is_right ? "" : *of_group);
  } catch (const dp::AgreedError& error) {
    sentence = error.what();
  }
  if (!sentence) return;
  process().comm.reset();
  process().mpi.reset();  // finalises MPI normally, because no exception is in flight here
  dp::throw_error(dp::ErrorKind::usage, "{}", *sentence);
}

// Collective. The communicator of the ranks with the same part of the model as this rank; null if
// all ranks have the same part.
std::unique_ptr<dp::Communicator> with_same_shard(std::uint64_t shards, dp::Communicator& comm) {
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  comm.together([&] {
    if (ranks % shards == 0) return;
    dp::throw_error(dp::ErrorKind::usage, "shards {}: must divide the number of ranks, {}", shards,
                    ranks);
  });
  const std::vector<std::uint64_t> all = comm.all_gather(shards);
  comm.together([&] {
    const auto other = std::ranges::find_if(all, [shards](auto one) { return one != shards; });
    if (other == all.end()) return;
    dp::throw_error(dp::ErrorKind::usage, "rank {} has {} shards, and rank {} has {}", comm.rank(),
                    shards, other - all.begin(), *other);
  });
  if (shards == 1) return nullptr;
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_split(comm.handle(), static_cast<int>(static_cast<std::uint64_t>(comm.rank()) % shards),
                 comm.rank(), &group);
  auto replicas = std::make_unique<dp::Communicator>(group);
  MPI_Comm_free(&group);
  return replicas;
}

void start(MPI_Comm parent) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    dp::throw_error(
        dp::ErrorKind::usage,
        "MPI was started with thread level {}; dptrain_comm needs MPI_THREAD_SERIALIZED, "
        "{}, or a higher one",
        provided, int{MPI_THREAD_SERIALIZED});  // an enumerator in Open MPI
  }
  process().comm.emplace(parent);
  require_launcher_of_mpi(parent);
  dp::capi::note_rank(process().comm->rank(), process().comm->size());
  process().comm->set_warn(
      [](const std::string& text) { std::fprintf(stderr, "%s: %s\n", kLibrary, text.c_str()); });
}

}  // namespace

// ---- the process --------------------------------------------------------------------------------

int dptrain_comm_init() {
  return result_of([] {
    dp::open_standard_streams();
    require(!process().comm, "dptrain_comm_init has already been called");
    dp::capi::require_no_child();
    int is_running = 0;
    MPI_Initialized(&is_running);
    if (is_running == 0) {
      dp::capi::claim_identity(command_line());
      // The program may open connections of its own and create several exchanges.
      constexpr bool kIsAlone = false, kHasThreads = true;
      process().mpi.emplace(nullptr, nullptr,
                            dp::WatchdogOptions{.program = kLibrary, .timeout_option = {}},
                            kIsAlone, kHasThreads);
    }
    dp::capi::claim_identity(command_line());
    start(MPI_COMM_WORLD);
  });
}

int dptrain_comm_init_with(std::int32_t fortran_handle) {
  return result_of([fortran_handle] {
    dp::open_standard_streams();
    require(!process().comm, "dptrain_comm_init has already been called");
    int is_running = 0;
    MPI_Initialized(&is_running);
    require(is_running != 0, "MPI is not running; dptrain_comm_init starts it");
    start(MPI_Comm_f2c(fortran_handle));
  });
}

int dptrain_comm_finalize() {
  return result_of([] {
    require(process().exchanges.empty(), "destroy all exchanges first");
    process().comm.reset();
    process().mpi.reset();
    dp::capi::release_identity();
  });
}

void dptrain_comm_abort(int exit_code, const char* reason) {
  if (process().mpi) process().mpi->abort(exit_code, kLibrary, reason == nullptr ? "" : reason);
  if (reason != nullptr) std::fprintf(stderr, "%s: %s\n", kLibrary, reason);
  int has_begun = 0, has_ended = 0;
  MPI_Initialized(&has_begun);
  MPI_Finalized(&has_ended);
  if (has_begun != 0 && has_ended == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

int dptrain_comm_rank() { return process().comm ? process().comm->rank() : -1; }
int dptrain_comm_size() { return process().comm ? process().comm->size() : -1; }

int dptrain_comm_broadcast(void* bytes, std::size_t size) {
  return result_of([=] {
    std::string text(static_cast<const char*>(bytes), size);
    const std::vector<dptrain_comm*>& exchanges = process().exchanges;
    for (const dptrain_comm* each : exchanges) each->require_step(false);
    const auto of_all = std::ranges::find_if(exchanges, [](const dptrain_comm* each) {
      return each->comm->size() == dptrain_comm_size();
    });
    if (of_all != exchanges.end()) {
      (*of_all)->sync.reducer().run([&text](dp::Communicator& comm) { comm.broadcast(text); });
    } else {
      communicator().broadcast(text);
    }
    if (text.size() != size) {
      dp::throw_error(dp::ErrorKind::usage, "rank 0 broadcasts {} bytes, but this rank expects {}",
                      text.size(), size);
    }
    std::memcpy(bytes, text.data(), size);
  });
}

// ---- an exchange --------------------------------------------------------------------------------

void dptrain_comm_defaults_sized(dptrain_comm_options* options, std::size_t struct_bytes) {
  if (options == nullptr) return;
  options->struct_bytes = struct_bytes;
  dp::capi::write_struct(dp::capi::default_options(), options);
}

#undef dptrain_comm_defaults
void dptrain_comm_defaults(dptrain_comm_options* options) {
  dptrain_comm_defaults_sized(options, offsetof(dptrain_comm_options, codecs));
}

int dptrain_comm_check(const dptrain_comm_options* options) {
  return result_of([options] {
    require(options != nullptr, "options is NULL");
    dp::capi::check(dp::capi::read_struct(*options, dp::capi::default_options()));
  });
}

int dptrain_comm_create(const dptrain_comm_slot* slots, std::size_t count,
                        const dptrain_comm_options* options, dptrain_comm** exchange) {
  return result_of([&] {
    require(exchange != nullptr, "exchange is NULL");
    *exchange = nullptr;
    dp::Communicator& comm = communicator();
    int threads = MPI_THREAD_SINGLE;
    MPI_Query_thread(&threads);
    require(
        process().exchanges.empty() || threads >= MPI_THREAD_MULTIPLE,
        "several exchanges need MPI_THREAD_MULTIPLE, and MPI was started without it; destroy the "
        "other exchange first");
    require(
        !process().has_lost_step || comm.size() == 1,
        "an exchange was destroyed in the middle of a step, and messages of that step may still "
        "arrive: this process cannot create another exchange; end all ranks and start them again");
    // A mistake on one rank must be an error on all ranks.
    dptrain_comm_options chosen = dp::capi::default_options();
    dp::capi::Layout layout;
    comm.together([&] {
      if (options != nullptr) chosen = dp::capi::read_struct(*options, chosen);
      dp::capi::check(chosen);
      layout = dp::capi::lay_out(slots, count);
    });
    const std::unique_ptr<dp::Communicator> replicas = with_same_shard(chosen.shards, comm);
    dp::Communicator& parent = replicas ? *replicas : comm;
    dp::capi::agree_on(layout, chosen, parent);
    *exchange = new dptrain_comm(std::move(layout), chosen, parent);
    process().exchanges.push_back(*exchange);
  });
}

void dptrain_comm_destroy(dptrain_comm* exchange) {
  if (exchange == nullptr) return;
  process().has_lost_step = process().has_lost_step || exchange->is_in_step;
  std::erase(process().exchanges, exchange);
  delete exchange;
}

float* dptrain_comm_values(dptrain_comm* exchange, std::size_t slot) {
  float* values = nullptr;
  static_cast<void>(result_on(exchange, [&](dptrain_comm& it) {
    values = it.gradient.get() + it.layout.tensors[it.tensor(slot)].offset;
  }));
  return values;
}

int dptrain_comm_makes_step(dptrain_comm* exchange, std::size_t slot) {
  bool makes = false;
  static_cast<void>(result_on(
      exchange, [&](dptrain_comm& it) { makes = it.sync.has_momentum(it.tensor(slot)); }));
  return makes ? 1 : 0;
}

int dptrain_comm_begin_step(dptrain_comm* exchange, double progress) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    if (!it.has_agreed_on_step) it.agree_on_step();
    it.has_agreed_on_step = true;
    it.sync.begin_step(it.step, progress);
    if (it.trace) it.trace->step_begins(it.step);
    it.is_in_step = true;
    it.ready = 0;
    it.is_ready.assign(it.is_ready.size(), false);
  });
}

int dptrain_comm_begin_round(dptrain_comm* exchange, double progress) {
  const int result = result_on(exchange, [](dptrain_comm& it) {
    it.require_step(false);
    for (std::size_t t = 0; t < it.layout.tensors.size(); ++t) {
      require(!it.sync.has_momentum(t),
              "velocity= exchanges the optimiser's steps and cannot be used with rounds");
    }
    if (dp::RateGovernor* const rate = it.sync.governor()) rate->set_round({.number = it.step});
  });
  return result == DPTRAIN_COMM_OK ? dptrain_comm_begin_step(exchange, progress) : result;
}

int dptrain_comm_ready(dptrain_comm* exchange, std::size_t slot) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(true);
    const std::size_t tensor = it.tensor(slot);
    if (it.is_ready[tensor]) {
      dp::throw_error(dp::ErrorKind::usage, "slot {} was already reported as ready in this step",
                      slot);
    }
    it.is_ready[tensor] = true;
    ++it.ready;
    if (it.trace) it.trace->tensor_ready(tensor);
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
    if (it.trace) it.trace->backward_ends();
    const dp::StepVerdict verdict = it.sync.finish_step();
    if (it.trace) it.trace->step_ends();
    it.is_in_step = false;
    it.report.add(verdict, it.step, it.layout, it.sync.reducer());
    ++it.step;
    if (all_finite != nullptr) *all_finite = verdict.finite ? 1 : 0;
  });
}

int dptrain_comm_scale_residual(dptrain_comm* exchange, double factor) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    it.sync.change_loss_scale(factor);
  });
}

// ---- what it reports ----------------------------------------------------------------------------

int dptrain_comm_get_statistics(dptrain_comm* exchange, dptrain_comm_statistics* statistics) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(statistics != nullptr, "statistics is NULL");
    it.require_step(false);
    // Checks the struct before taking the costs, so that an invalid struct does not lose them.
    static_cast<void>(dp::capi::read_struct(*statistics, {}));
    dp::capi::write_struct(dp::capi::take_statistics(it), statistics);
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
    dp::capi::write_struct(dp::capi::statistics_of_bucket(it, bucket), statistics);
  });
}

int dptrain_comm_gather(dptrain_comm* exchange, const void* bytes, std::size_t size, void* all) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    require(bytes != nullptr, "bytes is NULL");
    require(all != nullptr || it.comm->rank() != 0, "the argument all is NULL on rank 0");
    it.sync.reducer().run([=](dp::Communicator& comm) {
      const std::vector<std::byte> gathered =
          comm.gather_rows(std::span<const std::byte>(static_cast<const std::byte*>(bytes), size));
      if (comm.rank() == 0) std::memcpy(all, gathered.data(), gathered.size());
    });
  });
}

const char* dptrain_comm_describe(dptrain_comm* exchange) {
  const int result =
      result_on(exchange, [](dptrain_comm& it) { it.description = dp::capi::describe(it); });
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

int dptrain_comm_get_rate(dptrain_comm* exchange, dptrain_comm_rate* rate) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(rate != nullptr, "rate is NULL");
    it.require_step(false);
    dp::capi::write_struct(dp::capi::rate_of(it), rate);
  });
}

int dptrain_comm_set_bits(dptrain_comm* exchange, double bits) {
  return result_on(exchange, [=](dptrain_comm& it) {
    it.require_step(false);
    it.sync.set_mean_bits(bits);
  });
}

int dptrain_comm_write_trace(dptrain_comm* exchange) {
  return result_on(exchange, [](dptrain_comm& it) {
    require(it.trace != nullptr, "this exchange was created without the option trace");
    it.require_step(false);
    it.trace->write(it.sync.reducer());
  });
}

// ---- its state ----------------------------------------------------------------------------------

std::size_t dptrain_comm_state_bytes(dptrain_comm* exchange) {
  std::size_t size = 0;
  static_cast<void>(result_on(
      exchange, [&](dptrain_comm& it) { size = dp::saved_bytes(it.stateful(it.state())); }));
  return size;
}

int dptrain_comm_save_state(dptrain_comm* exchange, void* bytes, std::size_t size) {
  return result_on(exchange, [=](dptrain_comm& it) {
    dp::save_state(it.stateful(it.state()), {static_cast<std::byte*>(bytes), size});
  });
}

int dptrain_comm_load_state(dptrain_comm* exchange, const void* bytes, std::size_t size) {
  return result_on(exchange, [=](dptrain_comm& it) {
    const std::optional<dp::StateOrigin> saved =
        dp::load_state(it.stateful(it.state()), {static_cast<const std::byte*>(bytes), size});
    it.sync.set_loss_scale(saved ? saved->loss_scale : 1.0);
    if (!saved) {
      std::fprintf(stderr,
                   "%s: rank %d has loaded a state of an earlier version, which does not name "
                   "the rank that saved it; make sure that it was the same rank\n",
                   kLibrary, dptrain_comm_rank());
    }
  });
}

int dptrain_comm_merge_states(dptrain_comm* exchange, const void* const* states,
                              const std::size_t* sizes, std::size_t count) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(states != nullptr && sizes != nullptr, "states or sizes is NULL");
    std::vector<std::span<const std::byte>> from;
    for (std::size_t r = 0; r < count; ++r) {
      from.emplace_back(static_cast<const std::byte*>(states[r]), sizes[r]);
    }
    require(count == 1 || it.comm->size() == dptrain_comm_size(),
            "with shards, a state can be loaded only by as many ranks as saved it");
    require(
        count == 1 || !it.has_leaders(),
        "with the topology hierarchical, one rank of each host encodes for all ranks of the host, "
        "so a state can be loaded only by as many ranks as saved it");
    it.sync.set_loss_scale(dp::merge_states(it.stateful(it.state()), from).loss_scale);
  });
}

const char* dptrain_comm_last_error() { return dp::capi::last_error().c_str(); }

const char* dptrain_comm_version() { return DPTRAIN_COMM_VERSION; }
