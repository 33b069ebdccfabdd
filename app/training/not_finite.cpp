#include "app/training/not_finite.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "app/training/setup/weights.hpp"

namespace dp {
namespace {

constexpr std::uint64_t kNowhere = Exchange::kAllFinite;

std::string tensor_at(const net::Parameters& parameters, std::size_t place) {
  for (const net::Parameter& tensor : parameters.tensors()) {
    if (place >= tensor.offset && place < tensor.offset + tensor.elements) return tensor.name;
  }
  return "the gradient";
}

}  // namespace

std::string describe_own_not_finite(Replica& replica, const Communicator& comm) {
  net::Parameters& parameters = replica.network().parameters();
  const std::string who = fmt::format("rank {}", comm.rank());
  const std::vector<float> gradient = to_host(replica.device(), parameters.gradients());
  const auto first =
      std::ranges::find_if(gradient, [](float value) { return !std::isfinite(value); });
  if (first == gradient.end()) return who;  // the loss was not finite
  const auto place = static_cast<std::size_t>(first - gradient.begin());
  return fmt::format("{}, first in {}", who, tensor_at(parameters, place));
}

std::string describe_not_finite(Replica& replica, const Communicator& comm,
                                const StepVerdict& verdict) {
  net::Parameters& parameters = replica.network().parameters();
  const std::vector<std::uint64_t> places = replica.sync().reducer().run(
      [&](Communicator& c) { return c.all_gather(std::uint64_t{verdict.first_not_finite}); });
  const auto is_bad = [](std::uint64_t place) { return place != kNowhere; };
  const auto first = std::ranges::find_if(places, is_bad);
  // Every rank's input was finite, but a sum was not.
  if (first == places.end())
    return "all ranks together, although each rank's own values are finite";
  const auto rank = static_cast<std::size_t>(first - places.begin());
  std::string text = fmt::format("rank {}", rank);
  if (comm.size() > 1) text += fmt::format(" on host {}", comm.hosts()[rank]);
  text += fmt::format(", first in {}", tensor_at(parameters, *first));
  const auto others = std::ranges::count_if(places, is_bad) - 1;
  if (others > 0) text += fmt::format(" (and on {} more)", others);
  return text;
}

}  // namespace dp
