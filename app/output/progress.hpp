// The sink on standard output, which --progress chooses.
#pragma once

#include <memory>

#include "app/options/options.hpp"
#include "app/output/run_sink.hpp"

namespace dp {

[[nodiscard]] std::unique_ptr<RunSink> make_progress(const Options& options);

}  // namespace dp
