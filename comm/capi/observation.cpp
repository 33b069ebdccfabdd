// What an exchange tells of itself: costs, codecs' rates, buckets, whether ranks agree, the trace.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/capi/exchange.hpp"
#include "comm/replica_hash.hpp"

using dp::capi::require;
using dp::capi::result_on;

int dptrain_comm_get_statistics(dptrain_comm* exchange, dptrain_comm_statistics* statistics) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(statistics != nullptr, "statistics is NULL");
    it.require_step(false);
    const std::uint64_t size = dp::capi::read_struct(*statistics, {}).struct_bytes;
    dp::CommTimes times = it.sync.reducer().take_times();
    it.taken = std::move(times.buckets);
    const dp::CommCost& cost = times.total;
    const dp::capi::StepReport::Counts counts = it.report.take();
    const dptrain_comm_statistics taken = {.struct_bytes = size,
                                           .sent_bytes = cost.sent_bytes,
                                           .received_bytes = cost.received_bytes,
                                           .comm_s = cost.comm_s,
                                           .encode_s = cost.encode_s,
                                           .decode_s = cost.decode_s,
                                           .peer_wait_s = cost.peer_wait_s,
                                           .wire_s = cost.wire_s,
                                           .bits = it.sync.rate_report().mean_bits(),
                                           .skipped_steps = counts.skipped_steps,
                                           .clamped_values = counts.clamped_values};
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

int dptrain_comm_get_rate(dptrain_comm* exchange, dptrain_comm_rate* rate) {
  return result_on(exchange, [=](dptrain_comm& it) {
    require(rate != nullptr, "rate is NULL");
    it.require_step(false);
    const std::uint64_t size = dp::capi::read_struct(*rate, {}).struct_bytes;
    const dp::RateReport& report = it.sync.rate_report();
    const dptrain_comm_rate taken = {.struct_bytes = size,
                                     .planned_bits = report.planned_bits,
                                     .partial_bits = report.bits[0],
                                     .total_bits = report.bits[1],
                                     .partial_step = report.next_steps[0],
                                     .total_step = report.next_steps[1],
                                     .link_bytes_per_s = report.link_bytes_per_s,
                                     .hidden_bits = report.hidden_bits,
                                     .relative_error = report.relative_error,
                                     .residual_growth = report.residual_growth,
                                     .guard_factor = report.guard_factor,
                                     .wished_bits = report.wished_bits,
                                     .binding_bucket = report.binding_number()};
    std::memcpy(rate, &taken, std::min<std::size_t>(sizeof taken, size));
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
    require(it.trace != nullptr, "the options of this exchange name no trace");
    it.require_step(false);
    it.trace->write(it.sync.reducer());
  });
}
