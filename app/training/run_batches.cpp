#include "app/training/run_batches.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "app/process/together_on_hosts.hpp"
#include "app/training/earlier_choices.hpp"
#include "app/training/single_images.hpp"
#include "io/images/sampler.hpp"
#include "kernels/base/error.hpp"
#include "net/models/registry.hpp"
#include "net/single_values.hpp"

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

std::vector<std::string> norms_of_single_values(const Run& run) {
  const ImageSource& images = *run.data.train;
  return net::norms_of_single_values(
      net::make_model(run.options.model, {.image = images.shape(), .classes = images.classes()}));
}

std::optional<SingleValues> find_single_values(const std::vector<std::string>& layers,
                                               const PlannedSteps& planned) {
  const Options& options = planned.options;
  if (layers.empty() || options.epochs == 0) return {};  // evaluation has running statistics
  const BatchSchedule& schedule = options.batch_schedule;
  const auto epochs = checked_cast<std::size_t>(options.epochs);
  std::vector<ImageDivision::Batch> batches;
  const auto add = [&](std::size_t images, bool is_scheduled) {
    if (std::ranges::count(batches, images, &ImageDivision::Batch::images) > 0) return;
    const auto least = checked_cast<std::size_t>(options.accumulate);
    const std::size_t at_once =
        planned.ranks * (planned.largest_part > 0 ? planned.largest_part : images);
    batches.push_back({images, std::max(least, (images + at_once - 1) / at_once), is_scheduled});
  };
  if (schedule.kind == BatchSchedule::Kind::list) {  // only the batches of epochs that the run has
    for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
      add(schedule.batch_of(epoch, planned.global_batch, 0.0, 0.0),
          epoch + 1 >= schedule.list.front().first);
    }
  } else {
    add(planned.global_batch, false);
    if (epochs > 1) {
      for (const std::size_t size : schedule.all(planned.global_batch)) add(size, true);
    }
  }
  const ImageDivision division = {.samples = planned.samples,
                                  .ranks = planned.ranks,
                                  .sync_bn = options.sync_bn,
                                  .batches = batches};
  const SingleImages found = find_single_images(division);
  if (found.where == SingleImages::Where::nowhere) return {};
  const bool is_global = options.global_batch > 0;
  return SingleValues{
      found.where == SingleImages::Where::in_every_step,
      describe_single_images(found, division, layers,
                             {.batch = is_global ? "--global-batch" : "--batch-size",
                              .batch_value = checked_cast<std::size_t>(
                                  is_global ? options.global_batch : options.batch_size),
                              .batch_schedule = options.batch_schedule.given,
                              .accumulate = checked_cast<std::size_t>(options.accumulate),
                              .can_sync_bn = options.exchange && !options.sync_every.has_rounds(),
                              .has_image_size = options.is_folder(),
                              .goes_on = planned.goes_on})};
}

void check_single_images(Run& run) {
  const auto found = find_single_values(norms_of_single_values(run),
                                        {.options = run.options,
                                         .samples = run.data.train->count(),
                                         .ranks = static_cast<std::size_t>(run.comm.size()),
                                         .global_batch = run.global_batch,
                                         .largest_part = run.largest_part,
                                         .goes_on = run.resume.has_value()});
  if (!found) return;
  if (found->is_error) throw_error(ErrorKind::usage, "{}", found->text);
  if (run.comm.rank() == 0) run.progress.warn(found->text);
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
