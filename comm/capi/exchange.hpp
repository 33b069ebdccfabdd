// The object behind a dptrain_comm*, and the conversion of exceptions to result codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/capi/arguments.hpp"
#include "comm/capi/dptrain_comm.h"
#include "comm/capi/exchange_trace.hpp"
#include "comm/capi/saved_state.hpp"
#include "comm/capi/step_report.hpp"
#include "comm/gradient_sync.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/state.hpp"

struct dptrain_comm {
  // Collective on `parent`; the exchange uses a duplicate of it.
  dptrain_comm(dp::capi::Layout layout_of_slots, const dptrain_comm_options& options,
               dp::Communicator& parent);
  ~dptrain_comm();
  dptrain_comm(const dptrain_comm&) = delete;
  dptrain_comm& operator=(const dptrain_comm&) = delete;

  [[nodiscard]] std::size_t tensor(std::size_t slot) const;
  void require_step(bool is_wanted) const;
  [[nodiscard]] dp::StateList state();
  [[nodiscard]] dp::StatefulExchange stateful(const dp::StateList& list) const;
  // Whether there is a bucket that only one rank of each host encodes.
  [[nodiscard]] bool has_leaders();
  // Collective. Throws Error(data) on all ranks if the ranks are at different steps.
  void agree_on_step();

  std::unique_ptr<dp::Communicator> comm;
  dp::capi::Layout layout;
  // Zeros at first. The system allocates only the pages that are written.
  std::unique_ptr<float[], void (*)(void*)> gradient;
  std::unique_ptr<dp::capi::ExchangeTrace> trace;  // null: no trace
  dp::GradientSync sync;
  std::vector<bool> is_ready = std::vector<bool>(layout.tensors.size());
  std::size_t ready = 0;
  std::uint64_t step = 0;
  bool is_in_step = false;
  bool has_agreed_on_step = false;
  dp::capi::StepReport report;
  std::vector<dp::CommCost> taken;  // by bucket, as of the last dptrain_comm_get_statistics
  std::string description;
};

namespace dp::capi {

// The message of the last error; each thread has its own.
[[nodiscard]] std::string& last_error();

// Runs f and converts an exception to a result code.
template <class F>
int result_of(F f) {
  try {
    f();
    return DPTRAIN_COMM_OK;
  } catch (...) {
    return exit_code_of_current_exception(last_error());
  }
}

// The same for a function on an exchange.
template <class F>
int result_on(dptrain_comm* exchange, F f) {
  return result_of([&] {
    require(exchange != nullptr, "exchange is NULL");
    f(*exchange);
  });
}

}  // namespace dp::capi
