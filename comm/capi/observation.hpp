// Reports on an exchange, in the structs of the C interface: costs, buckets, and the bits per value
// of codecs that vary this number. dptrain_comm.cpp copies the reports to the callers' structs,
// which may come from an older header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "comm/capi/dptrain_comm.h"
#include "comm/capi/exchange.hpp"

namespace dp::capi {

// Copies `report` to the caller's struct. If the caller's struct comes from an older header, it may
// be shorter. Fields beyond its end are then left out.
template <class Struct>
void write_struct(Struct report, Struct* to) {
  report.struct_bytes = read_struct(*to, {}).struct_bytes;
  std::memcpy(to, &report, std::min<std::size_t>(sizeof report, report.struct_bytes));
}

// The costs since the last call; statistics_of_bucket() then returns each bucket's costs of the
// same period. Waits for the exchange's thread. write_struct() sets struct_bytes; this function and
// those below do not.
[[nodiscard]] dptrain_comm_statistics take_statistics(dptrain_comm& exchange);
[[nodiscard]] dptrain_comm_bucket_statistics statistics_of_bucket(const dptrain_comm& exchange,
                                                                  std::size_t bucket);
[[nodiscard]] dptrain_comm_rate rate_of(const dptrain_comm& exchange);
// A line for each bucket.
[[nodiscard]] std::string describe(dptrain_comm& exchange);

}  // namespace dp::capi
