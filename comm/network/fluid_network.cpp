#include "comm/network/fluid_network.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

double FluidNetwork::Flow::left_s() const {
  // A remainder below this fraction of a byte is only a rounding error of summed times, so it
  // counts as sent.
  constexpr double kNothing_bytes = 1e-3;
  return left_bytes <= kNothing_bytes ? 0.0 : left_bytes / bytes_per_s;
}

NetworkPorts NetworkPorts::alike(std::size_t hosts, double bytes_per_s, double latency_s) {
  return {.send_bytes_per_s = std::vector(hosts, bytes_per_s),
          .receive_bytes_per_s = std::vector(hosts, bytes_per_s),
          .latency_s = latency_s};
}

FluidNetwork::FluidNetwork(NetworkPorts ports, std::vector<int> hosts)
    : ports_(std::move(ports)), hosts_(std::move(hosts)), flows_(hosts_.size() * hosts_.size()) {
  const std::size_t count = ports_.send_bytes_per_s.size();
  tokens_.assign(2 * count, {.bytes = ports_.burst_bytes});
  DP_ASSERT(ports_.receive_bytes_per_s.size() == count, "{} and {} ports", count,
            ports_.receive_bytes_per_s.size());
  for (std::size_t from = 0; from < hosts_.size(); ++from) {
    for (std::size_t to = 0; to < hosts_.size(); ++to) {
      if (hosts_[from] == hosts_[to]) continue;
      flow(from, to).send_port = static_cast<std::size_t>(hosts_[from]);
      flow(from, to).receive_port = count + static_cast<std::size_t>(hosts_[to]);
    }
  }
}

void FluidNetwork::send(double now_s, const Message& message) {
  go_on(now_s);
  Flow& to = flow(message.from, message.to);
  to.waiting.push(message);
  if (to.is_active) return;
  to.is_active = true;
  if (to.send_port != kNoPort) {
    gather(to.send_port, ports_.send_bytes_per_s[to.send_port]);
    gather(to.receive_port,
           ports_.receive_bytes_per_s[to.receive_port - ports_.receive_bytes_per_s.size()]);
  }
  begin_message(to);
  active_.push_back(static_cast<std::size_t>(&to - flows_.data()));
  is_shared_ = false;
}

double FluidNetwork::next_s() {
  if (!is_shared_) share_ports();
  return next_s_;
}

std::optional<FluidNetwork::Sent> FluidNetwork::take(double now_s) {
  if (next_s() > now_s) return std::nullopt;
  const double end_s = next_s_;
  go_on(end_s);
  // If the messages of several flows end now, takes the message of the first flow in the order of
  // ranks.
  const auto ended = std::ranges::min_element(
      active_, {}, [&](std::size_t f) { return std::pair(flows_[f].left_s(), f); });
  Flow& from = flows_[*ended];
  const bool is_inside = from.send_port == kNoPort;
  Sent sent = {.message = from.waiting.front(),
               .left_s = end_s,
               .arrives_s = end_s + (is_inside ? 0.0 : ports_.latency_s)};
  from.waiting.pop();
  if (from.waiting.empty()) {
    from.is_active = false;
    active_.erase(ended);
    if (!is_inside) {
      for (const std::size_t port : {from.send_port, from.receive_port}) {
        if (--tokens_[port].flows == 0) tokens_[port].since_s = end_s;
      }
    }
    is_shared_ = false;
  } else {
    // The flow stays active with its next message. All rates stay the same; only the end time of
    // this flow's message changes.
    begin_message(from);
    is_shared_ = false;
  }
  return sent;
}

void FluidNetwork::begin_message(Flow& flow) {
  flow.left_bytes = flow.waiting.front().bytes;
  if (flow.send_port == kNoPort) return;
  Tokens &send = tokens_[flow.send_port], &receive = tokens_[flow.receive_port];
  const double at_once = std::min({send.bytes, receive.bytes, flow.left_bytes});
  send.bytes -= at_once;
  receive.bytes -= at_once;
  flow.left_bytes -= at_once;
}

// Called when a flow begins. An idle port has gathered tokens since its last flow ended.
void FluidNetwork::gather(std::size_t port, double bytes_per_s) {
  Tokens& tokens = tokens_[port];
  if (tokens.flows++ > 0) return;
  tokens.bytes =
      std::min(ports_.burst_bytes, tokens.bytes + bytes_per_s * (now_s_ - tokens.since_s));
}

// Carries bytes until `now_s`.
void FluidNetwork::go_on(double now_s) {
  if (!is_shared_) share_ports();
  const double passed_s = now_s - now_s_;
  DP_ASSERT(passed_s >= -1e-9, "the simulated time must not go back from {} to {}", now_s_, now_s);
  if (passed_s > 0.0) {
    for (const std::size_t f : active_) {
      Flow& flow = flows_[f];
      flow.left_bytes = std::max(0.0, flow.left_bytes - flow.bytes_per_s * passed_s);
    }
    now_s_ = now_s;
  }
}

void FluidNetwork::share_ports() {
  is_shared_ = true;
  const std::size_t hosts = ports_.send_bytes_per_s.size();
  std::vector<double> free(2 * hosts);
  std::vector<std::size_t> growing(2 * hosts);
  for (std::size_t h = 0; h < hosts; ++h) {
    free[h] = ports_.send_bytes_per_s[h];
    free[hosts + h] = ports_.receive_bytes_per_s[h];
  }
  std::vector<std::size_t> open;
  for (const std::size_t f : active_) {
    Flow& flow = flows_[f];
    if (flow.send_port == kNoPort) {
      flow.bytes_per_s = ports_.inside_bytes_per_s;
      continue;
    }
    ++growing[flow.send_port];
    ++growing[flow.receive_port];
    open.push_back(f);
  }
  while (!open.empty()) {
    double least = kNever;
    for (std::size_t p = 0; p < free.size(); ++p) {
      if (growing[p] > 0) least = std::min(least, free[p] / static_cast<double>(growing[p]));
    }
    const auto is_full = [&](std::size_t p) {
      return free[p] / static_cast<double>(growing[p]) <= least * (1.0 + 1e-12);
    };
    std::vector<std::size_t> kept, fixed;
    for (const std::size_t f : open) {
      (is_full(flows_[f].send_port) || is_full(flows_[f].receive_port) ? fixed : kept).push_back(f);
    }
    for (const std::size_t f : fixed) {
      Flow& flow = flows_[f];
      flow.bytes_per_s = least;
      for (const std::size_t p : {flow.send_port, flow.receive_port}) {
        free[p] = std::max(0.0, free[p] - least);
        --growing[p];
      }
    }
    open = std::move(kept);
  }
  next_s_ = kNever;
  for (const std::size_t f : active_) {
    next_s_ = std::min(next_s_, now_s_ + flows_[f].left_s());
  }
}

}  // namespace dp
