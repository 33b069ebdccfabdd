// The time in which an exchange runs without holding up training, in the words of the warning that
// the link carries less than the codec's minimum (floor_clash in run_warnings.hpp).
#pragma once

#include <string>

namespace dp {

struct ExchangeWindow {
  std::string when = "behind backward";
  // Buckets leave one after the other, so the last ones have the least time.
  bool is_by_bucket = true;
  // Advice that gives an exchange more time. may_send_less: sending fewer bits helps, too.
  std::string remedy =
      "fewer exchanges (--sync-every 4, or --sync-every auto), a larger --batch-size or "
      "--accumulate, fewer hosts";
  bool may_send_less = true;
};

}  // namespace dp
