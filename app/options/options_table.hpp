// The table of dptrain's options: one row each. A new option is a field of Options and a row here;
// parsing, --help, --print-config, the configuration file and the log follow.
#pragma once

#include "app/options/options.hpp"
#include "app/options/options_row.hpp"

namespace dp {

// Returns rows that are bound to the fields of `options`. This object must outlive the rows and
// must not be moved.
[[nodiscard]] OptionTable option_table(const OptionContext& context, Options& options);

}  // namespace dp
