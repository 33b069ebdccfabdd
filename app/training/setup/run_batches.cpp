#include "app/training/setup/run_batches.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "app/process/together_on_hosts.hpp"
#include "app/training/setup/earlier_choices.hpp"
#include "app/training/setup/single_images.hpp"
#include "io/images/sampler.hpp"
#include "kernels/base/error.hpp"
#include "net/models/registry.hpp"
#include "net/single_values.hpp"

namespace dp {

void check_batches(const Options& options, std::size_t global_batch, std::size_t ranks,
                   bool goes_on) {
  const std::size_t least = ranks * checked_cast<std::size_t>(options.accumulate);
  if (goes_on && global_batch < least) {
    throw_error(
        ErrorKind::usage,
        "{} ranks: the run in --checkpoint {} has {} images in a step, and every rank needs "
        "one{}; start at most {} ranks",
        ranks, options.checkpoint, global_batch,
        options.accumulate > 1 ? " in each of its parts" : "",
        global_batch / checked_cast<std::size_t>(options.accumulate));
  }
  if (options.batch_schedule.all(global_batch).front() < least) {
    throw_error(ErrorKind::usage,
                "--batch-schedule {}: must have batches of {} images or more, so that each rank "
                "has an image in a step",
                options.batch_schedule.given, least);
  }
}

Shares first_shares(const Options& options, std::size_t global_batch, std::size_t ranks,
                    bool goes_on) {
  const ShareChoice& choice = options.shares;
  if (choice.kind != ShareChoice::Kind::weights) return {};
  if (choice.weights.size() != ranks) {
    if (goes_on) return {};
    throw_error(ErrorKind::usage,
                "--shares {}: has {} weight{} for {} rank{}; give one for each rank, even or auto",
                choice.given, choice.weights.size(), choice.weights.size() == 1 ? "" : "s", ranks,
                ranks == 1 ? "" : "s");
  }
  const Shares shares(choice.weights);
  const auto parts = checked_cast<std::size_t>(options.accumulate);
  const std::size_t batch = options.batch_schedule.all(global_batch).front();
  if (shares.least(batch, ranks) < parts) {
    throw_error(ErrorKind::usage,
                "--shares {}: of {} images in a step some rank gets {}, but each needs {}{}; use "
                "a larger batch or other weights",
                choice.given, batch, shares.least(batch, ranks), parts,
                parts > 1 ? ", one in each of its parts" : "");
  }
  return shares;
}

// The number of images that a rank computes at once. It starts at the largest batch of the
// schedule, and is halved until it fits into the memory of each kind of device. With --accumulate,
// it stays at the size of a part at the start of the run.
std::size_t choose_largest_part(const RunPlan& plan, Communicator& comm, const RankMachine& machine,
                                Replica& replica) {
  const auto ranks_here = static_cast<std::size_t>(machine.share.ranks_on_host);
  const std::size_t least = plan.shares.most(plan.test_batch(), plan.ranks);
  const std::size_t most = plan.shares.most(plan.batches.all(plan.global_batch).back(), plan.ranks);
  std::size_t part = plan.options.accumulate > 1 ? least : std::max(least, most);
  together_on_hosts(comm, [&] {
    while (machine.is_first_of_kind && part > least) {
      try {
        replica.network().check_memory(part, ranks_here);
        // On a GPU, a lack of memory shows only when memory is allocated.
        if (replica.device().kind() == DeviceKind::cuda) {
          replica.prepare(part, net::Mode::training);
        }
        break;
      } catch (const OutOfMemory&) {
        part = std::max(least, (part + 1) / 2);
      }
    }
  });
  return std::ranges::min(comm.all_gather(part));
}

std::vector<std::string> norms_of_single_values(const Options& options, const ImageSource& images) {
  return net::norms_of_single_values(
      net::make_model(options.model, {.image = images.shape(), .classes = images.classes()}));
}

std::optional<SingleValues> find_single_values(const std::vector<std::string>& layers,
                                               const PlannedSteps& planned) {
  const Options& options = planned.options;
  if (layers.empty() || options.epochs == 0) return {};  // evaluation uses running statistics
  const BatchSchedule& schedule = options.batch_schedule;
  const auto epochs = checked_cast<std::size_t>(options.epochs);
  std::vector<ImageDivision::Batch> batches;
  const auto add = [&](std::size_t images, bool is_scheduled) {
    if (std::ranges::count(batches, images, &ImageDivision::Batch::images) > 0) return;
    const auto least = checked_cast<std::size_t>(options.accumulate);
    const std::size_t at_once = planned.largest_part > 0 ? planned.largest_part : images;
    const std::size_t of_rank = planned.shares.most(images, planned.ranks);
    batches.push_back({images, std::max(least, (of_rank + at_once - 1) / at_once), is_scheduled});
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
                                  .shares = planned.shares,
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

std::string check_single_images(const RunPlan& plan, const ImageSource& images, bool goes_on) {
  const auto found = find_single_values(norms_of_single_values(plan.options, images),
                                        {.options = plan.options,
                                         .samples = images.count(),
                                         .ranks = plan.ranks,
                                         .shares = plan.shares,
                                         .global_batch = plan.global_batch,
                                         .largest_part = plan.largest_part,
                                         .goes_on = goes_on});
  if (!found) return {};
  if (found->is_error) throw_error(ErrorKind::usage, "{}", found->text);
  return found->text;
}

// Plans the exchange, and the network for every batch size that will be used: the full one and the
// smaller last one, in training and in evaluation. The first rank of each kind of device measures
// algorithms while the other ranks wait, so that nothing disturbs the measurement. All ranks with
// that kind of device use the choices.
void prepare_batch_sizes(const RunPlan& plan, Communicator& comm, const Dataset& data,
                         const RankMachine& machine, bool goes_on, Replica& replica) {
  Device& device = replica.device();
  const auto prepare_size = [&](std::size_t global_batch, net::Mode mode) {
    const bool is_training = mode == net::Mode::training;
    const Sampler sampler({.samples = (is_training ? data.train : data.test)->count(),
                           .global_batch = global_batch,
                           .rank = static_cast<std::size_t>(comm.rank()),
                           .ranks = plan.ranks,
                           .parts = is_training ? plan.parts_of(global_batch) : 1,
                           .shares = plan.shares,
                           .seed = plan.seed(),
                           .order = SampleOrder::in_order});
    for (std::size_t part = 0; part < sampler.parts(); ++part) {
      replica.prepare(sampler.rank_samples(0, part), mode);
      replica.prepare(sampler.rank_samples(sampler.steps() - 1, part), mode);
    }
  };
  const auto prepare = [&] {
    for (const net::Mode mode : {net::Mode::training, net::Mode::evaluation}) {
      const bool is_training = mode == net::Mode::training;
      std::vector<std::size_t> sizes = {plan.test_batch()};
      if (is_training) sizes = plan.batches.all(plan.global_batch);
      for (const std::size_t size : sizes) prepare_size(size, mode);
    }
    replica.plan_exchange();
  };
  together_on_hosts(comm, [&] {
    replica.network().check_memory(std::min(plan.largest_part, data.train->count()),
                                   static_cast<std::size_t>(machine.share.ranks_on_host));
  });
  together_on_hosts(comm, [&] {
    if (!machine.is_first_of_kind) return;
    prepare();
    if (plan.options.takes_choices_from_a_log() && !goes_on) {
      check_choices_are_complete(plan.options, plan.choices, device);
    }
  });
  // Choices for different kinds of devices have different keys, so the texts can be joined. A rank
  // that has not measured adds nothing.
  std::string choices;
  for (const std::string& of_rank :
       comm.gather(machine.is_first_of_kind ? device.tuning().export_text() : std::string())) {
    choices += of_rank;
  }
  comm.broadcast(choices);
  together_on_hosts(comm, [&] {
    device.tuning().import_text(choices);
    if (!machine.is_first_of_kind) prepare();
  });
}

}  // namespace dp
