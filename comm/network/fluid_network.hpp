// A model of a network that carries messages at the rates of its ports: pure arithmetic.
//
// Every host has one port, which sends and receives at the same time. Messages from one rank to
// another (a *flow*) are carried one after the other, in the order in which they were sent.
// Different flows run at the same time. They share the ports as TCP's flows do in the long run:
// rates are *max-min fair*, so that speeding up a flow would always slow down another flow that is
// at most as fast (Bertsekas, Gallager: Data Networks, 6.5.2). The rates are found by filling: the
// rates of all flows grow together until a port is full. The flows of that port keep the rate that
// they have reached, and the rates of all other flows continue to grow.
//
// Messages between ranks of one host do not pass a port. Each pair of these ranks has the rate
// `inside_bytes_per_s` for itself.
//
// A port may have a token bucket in each direction, as kernels and providers use it to limit rates.
// While nothing passes the port, the bucket gathers tokens at the port's rate, up to `burst_bytes`.
// After the pause, as many bytes as the bucket has tokens may pass at once. The burst of a message
// is limited by the tokens of both its ports.
//
// A message's last byte leaves at the end of its transfer and arrives `latency_s` later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <vector>

namespace dp {

struct NetworkPorts {
  std::vector<double> send_bytes_per_s, receive_bytes_per_s;  // by host
  double latency_s = 0.0;                                     // one way, between hosts
  double burst_bytes = 0.0;  // may pass a port at once after a pause
  double inside_bytes_per_s = std::numeric_limits<double>::infinity();  // on one host

  // The ports of `hosts` hosts that all have the same bandwidth and latency.
  [[nodiscard]] static NetworkPorts alike(std::size_t hosts, double bytes_per_s, double latency_s);
};

class FluidNetwork {
 public:
  struct Message {
    std::size_t from = 0, to = 0;  // ranks
    double bytes = 0.0;
    std::uint64_t id = 0;  // the caller's
  };
  struct Sent {
    Message message;
    double left_s = 0.0;     // the time of its last byte
    double arrives_s = 0.0;  // at the other rank
  };

  // hosts[r]: the index of rank r's host, from 0.
  FluidNetwork(NetworkPorts ports, std::vector<int> hosts);

  // Time does not go backwards: `now_s` is not before any time used so far.
  void send(double now_s, const Message& message);
  // The time at which the next message's last byte leaves; infinity if none is under way.
  [[nodiscard]] double next_s();
  // The next message whose last byte leaves at `now_s` or before.
  [[nodiscard]] std::optional<Sent> take(double now_s);

 private:
  static constexpr std::size_t kNoPort = static_cast<std::size_t>(-1);
  struct Flow {  // from one rank to another
    std::queue<Message> waiting;
    double left_bytes = 0.0;  // of the first message
    double bytes_per_s = 0.0;
    std::size_t send_port = kNoPort, receive_port = kNoPort;
    bool is_active = false;
    // The remaining time of the first message at this rate.
    [[nodiscard]] double left_s() const;
  };

  // The tokens that a port had in one direction at `since_s`, when its last flow ended.
  struct Tokens {
    double bytes = 0.0, since_s = 0.0;
    std::size_t flows = 0;  // active ones
  };

  [[nodiscard]] Flow& flow(std::size_t from, std::size_t to) {
    return flows_[from * hosts_.size() + to];
  }
  void go_on(double now_s);
  void share_ports();
  // Begins the flow's first waiting message. The bytes covered by the tokens of both ports pass at
  // once.
  void begin_message(Flow& flow);
  void gather(std::size_t port, double bytes_per_s);

  NetworkPorts ports_;
  std::vector<int> hosts_;
  std::vector<Flow> flows_;
  std::vector<std::size_t> active_;  // of the flows
  std::vector<Tokens> tokens_;       // of the ports that send, then of those that receive
  double now_s_ = 0.0, next_s_ = std::numeric_limits<double>::infinity();
  bool is_shared_ = true;  // rates and next_s_ are up to date
};

}  // namespace dp
