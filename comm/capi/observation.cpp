#include "comm/capi/observation.hpp"

#include <utility>

namespace dp::capi {

dptrain_comm_statistics take_statistics(dptrain_comm& exchange) {
  CommTimes times = exchange.sync.reducer().take_times();
  exchange.taken = std::move(times.buckets);
  const CommCost& cost = times.total;
  const StepReport::Counts counts = exchange.report.take();
  return {.struct_bytes = 0,
          .sent_bytes = cost.sent_bytes,
          .received_bytes = cost.received_bytes,
          .comm_s = cost.comm_s,
          .encode_s = cost.encode_s,
          .decode_s = cost.decode_s,
          .peer_wait_s = cost.peer_wait_s,
          .wire_s = cost.wire_s,
          .bits = exchange.sync.rate_report().mean_bits(),
          .skipped_steps = counts.skipped_steps,
          .clamped_values = counts.clamped_values};
}

dptrain_comm_bucket_statistics statistics_of_bucket(const dptrain_comm& exchange,
                                                    std::size_t bucket) {
  require(!exchange.taken.empty(), "dptrain_comm_get_statistics has not been called");
  if (bucket >= exchange.taken.size()) {
    throw_error(ErrorKind::usage, "bucket {}: there are {}", bucket, exchange.taken.size());
  }
  const CommCost& cost = exchange.taken[bucket];
  return {.struct_bytes = 0,
          .values = exchange.sync.buckets()[bucket].elements,
          .sent_bytes = cost.sent_bytes,
          .encode_s = cost.encode_s,
          .decode_s = cost.decode_s,
          .peer_wait_s = cost.peer_wait_s,
          .wire_s = cost.wire_s,
          .error_squares = cost.sampled.error_squares,
          .value_squares = cost.sampled.value_squares,
          .residual_squares = cost.residual_squares};
}

dptrain_comm_rate rate_of(const dptrain_comm& exchange) {
  const RateReport& report = exchange.sync.rate_report();
  return {.struct_bytes = 0,
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
}

std::string describe(dptrain_comm& exchange) {
  std::string text;
  for (std::size_t b = 0; b < exchange.sync.buckets().size(); ++b) {
    const Bucket& bucket = exchange.sync.buckets()[b];
    text += fmt::format(
        "{} to {}, {} values, {}, {}{}{}\n", exchange.layout.tensors[bucket.first_tensor].name,
        exchange.layout.tensors[bucket.end_tensor - 1].name, bucket.elements, bucket.codec.text(),
        exchange.sync.reducer().topology_of(b).name, bucket.why.empty() ? "" : ", ", bucket.why);
  }
  return text;
}

}  // namespace dp::capi
