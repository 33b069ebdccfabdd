#include "app/training/setup/single_images.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "io/images/sampler.hpp"

namespace dp {
namespace {

using Where = SingleImages::Where;
using DividedBatch = ImageDivision::Batch;

bool has_single_image(const ImageDivision& division, const DividedBatch& batch, std::size_t step) {
  std::vector<std::size_t> of_all(batch.parts, 0);  // by part
  for (std::size_t rank = 0; rank < division.ranks; ++rank) {
    const Sampler sampler({.samples = division.samples,
                           .global_batch = batch.images,
                           .rank = rank,
                           .ranks = division.ranks,
                           .parts = batch.parts,
                           .shares = division.shares,
                           .seed = 0,
                           .order = SampleOrder::in_order});
    for (std::size_t part = 0; part < batch.parts; ++part) {
      const std::size_t images = sampler.rank_samples(step, part);
      if (images == 1 && !division.sync_bn) return true;
      of_all[part] += images;
    }
  }
  return division.sync_bn && std::ranges::count(of_all, std::size_t{1}) > 0;
}

// Whether batch normalisation gets a single image somewhere in a step with a full batch. Such a
// step is examined even if the run has too few images for it.
bool is_single_when_whole(ImageDivision division, const DividedBatch& batch) {
  division.samples = batch.images;
  return has_single_image(division, batch, 0);
}

// Whether batch normalisation gets a single image somewhere in a step with all images of the run.
bool is_single_in_one_step(const ImageDivision& division, const DividedBatch& batch) {
  return has_single_image(division, {division.samples, batch.parts}, 0);
}

Where single_images_in(const ImageDivision& division) { return find_single_images(division).where; }

bool needs_smaller_parts(const ImageDivision& division, const SingleImageRemedies& can,
                         Where wanted_at_most) {
  // With --accumulate, --batch-size is the size of a part.
  const bool is_of_part = can.batch == "--batch-size" &&
                          std::ranges::none_of(division.batches, [](const DividedBatch& batch) {
                            return batch.is_scheduled;
                          });
  if (can.accumulate <= 1 || is_of_part) return false;
  ImageDivision whole = division;
  for (DividedBatch& batch : whole.batches) batch.parts = 1;
  return single_images_in(whole) <= wanted_at_most;
}

std::string layers_text(const std::vector<std::string>& layers) {
  if (layers.size() == 1) return layers.front();
  return fmt::format("{} and {} more layer{}", layers.front(), layers.size() - 1,
                     layers.size() == 2 ? "" : "s");
}

// "a", "a or b", "a, b or c"
std::string any_of(const std::vector<std::string>& remedies) {
  std::string text;
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    const bool is_last = i + 1 == remedies.size();
    text += (i == 0 ? "" : is_last ? " or " : ", ") + remedies[i];
  }
  return text;
}

// The options that decide the batches in which a single image occurs.
struct Blame {
  bool base = false, schedule = false;
};

Blame blame_for(const SingleImages& found, const ImageDivision& division) {
  Blame blame;
  const auto add = [&](const DividedBatch& batch) {
    (batch.is_scheduled ? blame.schedule : blame.base) = true;
  };
  if (found.where == Where::in_every_step) {
    for (const DividedBatch& batch : division.batches) add(batch);
  } else {
    add(found.batch);
  }
  return blame;
}

std::vector<std::string> remedies_in_every_step(const SingleImages& found,
                                                const ImageDivision& division,
                                                const SingleImageRemedies& can) {
  std::vector<std::string> batches;
  const Blame blame = blame_for(found, division);
  if (blame.base) batches.push_back(fmt::format("a larger {}", can.batch));
  if (blame.schedule) batches.emplace_back("larger batches in --batch-schedule");
  std::vector<std::string> texts;
  if (!is_single_when_whole(division, found.batch)) {
    texts.emplace_back("more training images");
  } else if (!is_single_in_one_step(division, found.batch)) {
    texts.push_back(fmt::format("{}", fmt::join(batches, " and ")));
  } else {
    texts.push_back(fmt::format("more training images and {}", fmt::join(batches, " and ")));
  }
  if (needs_smaller_parts(division, can, Where::in_some_steps)) {
    texts.emplace_back("a smaller --accumulate");
  }
  return texts;
}

std::vector<std::string> remedies_in_some_steps(const SingleImages& found,
                                                const ImageDivision& division,
                                                const SingleImageRemedies& can) {
  std::vector<std::string> texts;
  const bool is_whole_step = is_single_when_whole(division, found.batch);
  if (found.batch.is_scheduled) {
    texts.emplace_back(is_whole_step ? "larger batches in --batch-schedule"
                                     : "another --batch-schedule");
  } else {
    texts.push_back(fmt::format("{} {}", is_whole_step ? "a larger" : "another", can.batch));
  }
  if (!is_whole_step) texts.emplace_back("another --limit-train");
  if (needs_smaller_parts(division, can, Where::nowhere)) {
    texts.emplace_back("a smaller --accumulate");
  }
  return texts;
}

// Lists the remedies that the user has; empty if there are none.
std::string remedies_text(const SingleImages& found, const ImageDivision& division,
                          const SingleImageRemedies& can) {
  const bool is_always = found.where == Where::in_every_step;
  if (can.goes_on) {
    ImageDivision fewer = division;
    const Where wanted = is_always ? Where::in_some_steps : Where::nowhere;
    fewer.shares = {};  // other ranks would have other shares
    while (--fewer.ranks > 0) {
      if (single_images_in(fewer) <= wanted) return "fewer ranks";
    }
    return is_always ? "another folder in --checkpoint for a run with other options" : "";
  }
  std::vector<std::string> texts = is_always ? remedies_in_every_step(found, division, can)
                                             : remedies_in_some_steps(found, division, can);
  ImageDivision together = division;
  together.sync_bn = true;
  const bool helps = !division.sync_bn && single_images_in(together) == Where::nowhere;
  if (can.can_sync_bn && helps) texts.emplace_back("--sync-bn on");
  if (can.can_sync_bn && is_always && division.ranks == 1) {
    texts.emplace_back("several ranks with --sync-bn on");
  }
  texts.emplace_back(can.has_image_size ? "a larger --image-size" : "another --model");
  return any_of(texts);
}

std::string cause_text(const SingleImages& found, const ImageDivision& division,
                       const SingleImageRemedies& can) {
  if (can.goes_on && is_single_when_whole(division, found.batch)) {
    return fmt::format("{} rank{} for a batch of {} image{}", division.ranks,
                       division.ranks == 1 ? "" : "s", found.batch.images,
                       found.batch.images == 1 ? "" : "s");
  }
  std::vector<std::string> texts;
  const Blame blame = blame_for(found, division);
  if (!is_single_when_whole(division, found.batch)) {
    texts.push_back(
        fmt::format("{} training image{}", division.samples, division.samples == 1 ? "" : "s"));
  } else {
    if (blame.base) texts.push_back(fmt::format("{} {}", can.batch, can.batch_value));
    if (blame.schedule) texts.push_back(fmt::format("--batch-schedule {}", can.batch_schedule));
  }
  if (needs_smaller_parts(division, can, Where::in_some_steps)) {
    texts.push_back(fmt::format("--accumulate {}", can.accumulate));
  }
  return fmt::format("{}", fmt::join(texts, " with "));
}

}  // namespace

SingleImages find_single_images(const ImageDivision& division) {
  SingleImages worst;
  bool is_always = true;
  for (const DividedBatch& batch : division.batches) {
    const std::size_t whole = division.samples / batch.images;
    const bool has_rest = division.samples % batch.images > 0;
    std::size_t single = 0;
    if (whole > 0 && has_single_image(division, batch, 0)) single += whole;
    if (has_rest && has_single_image(division, batch, whole)) ++single;
    const std::size_t steps = whole + (has_rest ? 1 : 0);
    is_always = is_always && single == steps;
    if (single * std::max<std::size_t>(worst.steps, 1) > worst.single_steps * steps) {
      worst = {Where::in_some_steps, batch, single, steps};
    }
  }
  if (worst.single_steps > 0 && is_always) worst.where = Where::in_every_step;
  return worst;
}

std::string describe_single_images(const SingleImages& found, const ImageDivision& division,
                                   const std::vector<std::string>& layers,
                                   const SingleImageRemedies& remedies) {
  const std::string what = fmt::format(
      "{} one image alone; batch normalisation in {} (maps of 1x1) then has one value per channel, "
      "and its output is the same for all images",
      division.sync_bn ? "all ranks together compute" : "a rank computes", layers_text(layers));
  const std::string remedy = remedies_text(found, division, remedies);
  if (found.where != Where::in_every_step) {
    const bool is_plural = remedies.goes_on;  // "fewer ranks"
    return fmt::format("in {} of {} steps of an epoch (batch of {}) {}{}{}", found.single_steps,
                       found.steps, found.batch.images, what, remedy.empty() ? "" : "; ",
                       remedy.empty() ? "" : remedy + (is_plural ? " avoid it" : " avoids it"));
  }
  return fmt::format("{}: in every step {}; use {}", cause_text(found, division, remedies), what,
                     remedy);
}

}  // namespace dp
