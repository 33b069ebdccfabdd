#include "app/options/options_optimizer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "app/options/options_keyed.hpp"
#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Kind = Options::Optimizer;

const std::vector<std::string> kNames = {"sgd", "adam", "adamw", "lars", "muon"};

// "PATTERN=X,...": factors by the names of tensors.
OptionRow factors_row(std::string name, std::vector<std::pair<std::string, double>>& field,
                      std::string help) {
  constexpr RealRange kRange = {.least = 0, .most = 10000};
  const std::string option = "--" + name;
  const std::string allowed =
      "names with * and ?, bn or bias, each with =X, joined by commas; X is " + kRange.allowed();
  return {.name = std::move(name),
          .placeholder = "NAME=X,...",
          .help = std::move(help),
          .allowed = allowed,
          .set =
              [=, &field](std::string_view value) {
                field.clear();
                for (const std::string& part : split_at_commas(value)) {
                  const std::size_t sign = std::min(part.rfind('='), part.size());
                  try {
                    if (sign == 0) throw_error(ErrorKind::usage, "no name");
                    const std::string number = part.substr(std::min(sign + 1, part.size()));
                    field.emplace_back(part.substr(0, sign), parse_real("", number, kRange));
                  } catch (const Error&) {
                    throw_error(ErrorKind::usage, "{} {}: must be {}", option, shown(value),
                                allowed);
                  }
                }
              },
          .get =
              [&field] {
                std::vector<std::string> parts;
                for (const auto& [pattern, factor] : field) {
                  parts.push_back(fmt::format("{}={}", pattern, real_text(factor)));
                }
                return fmt::format("{}", fmt::join(parts, ","));
              }};
}

// "5:0.5", "5:ramp" or "off".
OptionRow lookahead_row(Options& options) {
  constexpr WholeRange kEvery{1, 1'000'000};
  constexpr RealRange kShare{.least = 0, .most = 1, .is_least_allowed = false};
  const std::string allowed =
      fmt::format("off, N:X or N:ramp, with N {} and X {}", kEvery.allowed(), kShare.allowed());
  return {.name = "lookahead",
          .placeholder = "N:X|off",
          .help =
              "Lookahead: every N steps, slow weights move by the fraction X towards the trained "
              "weights, which then restart from the slow weights; evaluation uses the slow "
              "weights; N:ramp: X = 1 - 0.95^N t^3, t from 0 to 1 over the run",
          .allowed = allowed,
          .set =
              [=, &options](std::string_view value) {
                if (value == "off") {
                  options.lookahead_every = 0;
                  options.lookahead_share = Options().lookahead_share;
                  return;
                }
                const std::size_t colon = std::min(value.find(':'), value.size());
                const std::string_view share = value.substr(std::min(colon + 1, value.size()));
                try {
                  options.lookahead_every = parse_whole("", value.substr(0, colon), kEvery);
                  options.lookahead_share = share == "ramp" ? 0 : parse_real("", share, kShare);
                } catch (const Error&) {
                  throw_error(ErrorKind::usage, "--lookahead {}: must be {}", shown(value),
                              allowed);
                }
              },
          .get =
              [&options] {
                if (options.lookahead_every == 0) return std::string("off");
                return fmt::format(
                    "{}:{}", options.lookahead_every,
                    options.lookahead_share > 0 ? real_text(options.lookahead_share) : "ramp");
              }};
}

constexpr RealRange kShare = {.least = 0, .most = 1, .is_most_allowed = false};
constexpr RealRange kRate = {.least = 0, .most = 100, .is_least_allowed = false};
constexpr RealRange kAboveZero = {.least = 0, .most = 1, .is_least_allowed = false};

std::vector<OptionRow> keys_of_optimizers(Options& options) {
  const std::vector<std::string> adam = {"adam", "adamw"}, lars = {"lars"}, muon = {"muon"};
  return {
      key_of(adam, real_row("beta1", options.beta1, kShare, "decay of the mean gradient")),
      key_of(adam, real_row("beta2", options.beta2, kShare, "decay of the mean square")),
      key_of(adam, real_row("epsilon", options.epsilon, kAboveZero,
                            "constant added to the root of the mean square")),
      key_of(lars, real_row("trust", options.lars_trust, kAboveZero,
                            "length of a step at learning rate 1, relative to the matrix's norm")),
      key_of(muon,
             real_row("lr", options.muon_lr, kRate, "Muon's learning rate; follows --lr-schedule")),
      key_of(muon, real_row("momentum", options.muon_momentum, kShare, "Muon's momentum")),
      key_of(muon, on_off_row("linear", options.muon_linear,
                              "apply Muon to linear layers' weights, too"))};
}

}  // namespace

std::vector<OptionRow> optimizer_rows(Options& options) {
  OptionRow lr = real_row("lr", options.lr, kRate,
                          "the highest learning rate of the run; if not given, 0.001 for adam and "
                          "adamw, 2 for lars",
                          "0.2");
  OptionRow decay = real_row("weight-decay", options.weight_decay, {.least = 0, .most = 1},
                             "weight decay, added to the gradient (adamw: subtracted from the "
                             "weights); if not given, 0 for adam, 0.01 for adamw");
  return {
      keyed_row(choice_row("optimizer", options.optimizer, kNames,
                           "the optimiser; muon: Muon for convolution kernels, SGD for the rest"),
                keys_of_optimizers, options),
      std::move(lr),
      only_with(
          {.option = "optimizer", .values = {"sgd", "lars", "muon"}},
          real_row("momentum", options.momentum, kShare, "momentum of sgd, lars and muon's SGD")),
      only_with(
          {.option = "optimizer", .values = {"sgd", "muon"}},
          on_off_row("nesterov", options.nesterov, "Nesterov momentum; on with muon unless given")),
      std::move(decay),
      text_row("no-decay", options.no_decay, "NAME,...", "bn, bias or names with * and ?",
               "tensors without weight decay: bn (all of BatchNorm), bias (of all layers) or "
               "names with * and ?"),
      factors_row("lr-factors", options.lr_factors,
                  "learning-rate factors by tensor, such as 'bias=2,linear.*=0.5'; the first "
                  "match counts"),
      factors_row("decay-factors", options.decay_factors,
                  "weight-decay factors, in the form of --lr-factors"),
      real_row("label-smoothing", options.label_smoothing, kShare,
               "fraction of each target spread over all classes in training"),
      real_row("clip-norm", options.clip_norm, {.least = 0, .most = 1e6},
               "clip the gradient to this L2 norm; 0: off"),
      real_row("ema", options.ema, kShare,
               "evaluate an exponential average of the weights with this decay; 0: off"),
      lookahead_row(options)};
}

void set_optimizer_defaults(Options& options) {
  switch (options.optimizer) {
    case Kind::adam:
      options.lr = 1e-3;
      options.weight_decay = 0;
      break;
    case Kind::adamw:
      options.lr = 1e-3;
      options.weight_decay = 0.01;
      break;
    case Kind::lars:
      options.lr = 2;
      break;
    case Kind::muon:
      options.nesterov = true;
      break;
    case Kind::sgd:
      break;
  }
}

void resolve_optimizer(Options& options, const LayerOf& layer_of) {
  Options preset;
  preset.optimizer = options.optimizer;
  if (options.optimizer != Kind::sgd) {
    set_optimizer_defaults(preset);
    // A recipe's settings apply only to the recipe's own optimiser.
    const auto is_open = [&](const char* option) {
      const Layer layer = layer_of(option);
      return layer == Layer::preset ||
             (layer == Layer::recipe && layer_of("optimizer") > Layer::recipe);
    };
    if (is_open("lr")) options.lr = preset.lr;
    if (is_open("weight-decay")) options.weight_decay = preset.weight_decay;
    if (is_open("nesterov")) options.nesterov = preset.nesterov;
    if (is_open("momentum")) options.momentum = preset.momentum;
    if (is_open("lr-factors")) options.lr_factors = preset.lr_factors;
    if (is_open("decay-factors")) options.decay_factors = preset.decay_factors;
  }
  const bool has_momentum = options.momentum > 0;
  const bool uses_nesterov =
      (options.optimizer == Kind::sgd || options.optimizer == Kind::muon) && options.nesterov;
  if (uses_nesterov && !has_momentum) {
    if (layer_of("nesterov") == Layer::preset) {
      options.nesterov = false;
    } else {
      throw_error(ErrorKind::usage, "--nesterov on: needs a --momentum above 0");
    }
  }
}

}  // namespace dp
