#include "app/training/single_images.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/images/sampler.hpp"

namespace dp {
namespace {

using Where = SingleImages::Where;

bool has_single_image(const ImageDivision& division, const ImageDivision::Batch& batch,
                      std::size_t step) {
  std::vector<std::size_t> of_all(batch.parts, 0);  // by part
  for (std::size_t rank = 0; rank < division.ranks; ++rank) {
    const Sampler sampler({.samples = division.samples,
                           .global_batch = batch.images,
                           .rank = rank,
                           .ranks = division.ranks,
                           .parts = batch.parts,
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

std::string remedies_text(const SingleImages& found, const ImageDivision& division,
                          const SingleImageRemedies& can) {
  const bool is_always = found.where == Where::in_every_step;
  std::vector<std::string> texts;
  if (is_always && found.batch > division.samples) {
    texts.emplace_back("more training images");
  } else if (is_always) {
    texts.push_back(can.goes_on ? "fewer ranks" : fmt::format("a larger {}", can.batch));
  } else {
    texts.push_back(fmt::format("another {}", can.batch));
    texts.emplace_back("another --limit-train");
  }
  ImageDivision together = division;
  together.sync_bn = true;
  const bool helps = !division.sync_bn && find_single_images(together).where == Where::nowhere;
  if (can.can_sync_bn && helps) texts.emplace_back("--sync-bn on");
  if (can.can_sync_bn && is_always && division.ranks == 1) {
    texts.emplace_back("several ranks with --sync-bn on");
  }
  texts.emplace_back(can.has_image_size ? "a larger --image-size" : "another --model");
  return any_of(texts);
}

}  // namespace

SingleImages find_single_images(const ImageDivision& division) {
  SingleImages worst;
  bool is_always = true;
  for (const ImageDivision::Batch& batch : division.batches) {
    const std::size_t whole = division.samples / batch.images;
    const bool has_rest = division.samples % batch.images > 0;
    std::size_t single = 0;
    if (whole > 0 && has_single_image(division, batch, 0)) single += whole;
    if (has_rest && has_single_image(division, batch, whole)) ++single;
    const std::size_t steps = whole + (has_rest ? 1 : 0);
    is_always = is_always && single == steps;
    if (single * std::max<std::size_t>(worst.steps, 1) > worst.single_steps * steps) {
      worst = {Where::in_some_steps, batch.images, single, steps};
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
    return fmt::format("in {} of {} steps of an epoch (batch of {}) {}; {} avoids it",
                       found.single_steps, found.steps, found.batch, what, remedy);
  }
  const std::string cause =
      found.batch > division.samples
          ? fmt::format("{} training image{}", division.samples, division.samples == 1 ? "" : "s")
      : remedies.goes_on
          ? fmt::format("{} ranks for a batch of {} images", division.ranks, found.batch)
          : fmt::format("{} {}", remedies.batch, remedies.batch_value);
  return fmt::format("{}: in every step {}; use {}", cause, what, remedy);
}

}  // namespace dp
