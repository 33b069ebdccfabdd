// Words for the warning that the link carries less than the codec's minimum (floor_clash in
// run_warnings.hpp). They describe the time in which an exchange runs without holding up training.
#pragma once

#include <string>

namespace dp {

struct ExchangeWindow {
  std::string when = "behind the backward pass";
  // True: buckets are sent one after the other, so the last buckets have the least time.
  bool is_by_bucket = true;
  // Advice on how to give an exchange more time. may_send_less: whether sending fewer bits helps,
  // too.
  std::string remedy =
      "fewer exchanges (--sync-every 4, or --sync-every auto), a larger --batch-size or "
      "--accumulate, fewer hosts";
  bool may_send_less = true;
};

}  // namespace dp
