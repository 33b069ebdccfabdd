#include "app/run_batches.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "app/earlier_choices.hpp"
#include "app/together_on_hosts.hpp"
#include "io/sampler.hpp"

namespace dp {

double Run::rate_factor(double times) const {
  switch (options.lr_scaling) {
    case Options::LrScaling::linear:
      return times;
    case Options::LrScaling::sqrt:
      return std::sqrt(times);
    case Options::LrScaling::none:
      break;
  }
  return 1.0;
}

// How many images a rank computes at once: the largest batch of the schedule if that fits into
// memory, else half of it and so on. Rank 0 decides. With --accumulate a part keeps its size.
void plan_parts(Run& run) {
  const auto ranks = static_cast<std::size_t>(run.comm.size());
  const std::size_t least = (run.test_batch() + ranks - 1) / ranks;
  const std::size_t most = (run.batches.all(run.global_batch).back() + ranks - 1) / ranks;
  std::size_t part = run.options.accumulate > 1 ? least : std::max(least, most);
  const auto ranks_here = static_cast<std::size_t>(run.share.ranks_on_host);
  together_on_hosts(run.comm, [&] {
    while (run.comm.rank() == 0 && part > least) {
      try {
        run.replica->network().check_memory(part, ranks_here);
        // A GPU says it when memory is allocated.
        if (run.device->kind() == DeviceKind::cuda) {
          run.replica->prepare(part, net::Mode::training);
        }
        break;
      } catch (const OutOfMemory&) {
        part = std::max(least, (part + 1) / 2);
      }
    }
  });
  run.largest_part = run.comm.all_gather(part).front();
}

// Plans the exchange, and the network for every batch size that will be used: the full one and the
// smaller last one, in training and in evaluation. Rank 0 measures algorithms while the others
// wait, so that nothing disturbs the measurement, and all ranks use its choices.
void prepare_batch_sizes(Run& run) {
  const auto prepare_size = [&](std::size_t global_batch, net::Mode mode) {
    const bool is_training = mode == net::Mode::training;
    const Sampler sampler({.samples = (is_training ? run.data.train : run.data.test)->count(),
                           .global_batch = global_batch,
                           .rank = static_cast<std::size_t>(run.comm.rank()),
                           .ranks = static_cast<std::size_t>(run.comm.size()),
                           .parts = is_training ? run.parts_of(global_batch) : 1,
                           .seed = run.seed(),
                           .order = SampleOrder::in_order});
    for (std::size_t part = 0; part < sampler.parts(); ++part) {
      run.replica->prepare(sampler.rank_samples(0, part), mode);
      run.replica->prepare(sampler.rank_samples(sampler.steps() - 1, part), mode);
    }
  };
  const auto prepare = [&] {
    for (const net::Mode mode : {net::Mode::training, net::Mode::evaluation}) {
      const bool is_training = mode == net::Mode::training;
      std::vector<std::size_t> sizes = {run.test_batch()};
      if (is_training) sizes = run.batches.all(run.global_batch);
      for (const std::size_t size : sizes) prepare_size(size, mode);
    }
    run.replica->plan_exchange();
  };
  together_on_hosts(run.comm, [&] {
    const auto ranks_here = static_cast<std::size_t>(run.share.ranks_on_host);
    run.replica->network().check_memory(std::min(run.largest_part, run.data.train->count()),
                                        ranks_here);
  });
  together_on_hosts(run.comm, [&] {
    if (run.comm.rank() != 0) return;
    prepare();
    if (run.options.takes_choices_from_a_log() && !run.resume) {
      check_choices_are_complete(run.options, run.choices, *run.device);
    }
  });
  std::string choices = run.device->tuning().export_text();
  run.comm.broadcast(choices);
  together_on_hosts(run.comm, [&] {
    if (run.comm.rank() == 0) return;
    run.device->tuning().import_text(choices);
    prepare();
  });
}

}  // namespace dp
