#include "comm/mpi/throttled_transport.hpp"

#include <chrono>
#include <utility>
#include <vector>

namespace dp {
namespace {

// A queue of fixed size.
template <class T>
class Queue {
 public:
  explicit Queue(std::size_t most) : items_(most) {}
  [[nodiscard]] bool is_empty() const { return count_ == 0; }
  [[nodiscard]] const T& front() const { return items_[head_]; }
  void push(const T& item) { items_[(head_ + count_++) % items_.size()] = item; }
  void pop() {
    head_ = (head_ + 1) % items_.size();
    --count_;
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0, count_ = 0;
};

class ThrottledChannel final : public Channel {
 public:
  ThrottledChannel(std::unique_ptr<Channel> other, std::size_t slots, LinkModel& link,
                   const std::function<double()>& now_s)
      : other_(std::move(other)),
        link_(link),
        now_s_(now_s),
        is_delayed_(slots),
        sent_(slots),
        arrived_(slots),
        ended_(slots) {}

  void receive(std::size_t slot, std::span<std::byte> buffer, int from, int tag) override {
    is_delayed_[slot] = 1;
    other_->receive(slot, buffer, from, tag);
  }
  void send(std::size_t slot, std::span<const std::byte> message, int to, int tag) override {
    is_delayed_[slot] = 0;
    sent_.push({slot, message, to, tag, link_.transmit(message.size(), now_s_())});
  }
  void receive_notice(std::size_t slot, std::span<std::byte> buffer, int tag) override {
    is_delayed_[slot] = 0;
    other_->receive_notice(slot, buffer, tag);
  }
  void send_notice(std::size_t slot, std::span<const std::byte> notice, int to, int tag) override {
    is_delayed_[slot] = 0;
    other_->send_notice(slot, notice, to, tag);
  }

  // The link carries messages one after the other, so both queues are sorted by time, and only the
  // first messages need a check.
  std::span<const Completion> poll() override {
    std::size_t count = 0;
    for (const Completion& ended : other_->poll()) {
      if (is_delayed_[ended.slot] != 0) {
        arrived_.push({ended, link_.receive(ended.bytes, now_s_())});
      } else {
        ended_[count++] = ended;
      }
    }
    for (; !arrived_.is_empty() && now_s_() >= arrived_.front().there_s; arrived_.pop()) {
      ended_[count++] = arrived_.front().what;
    }
    for (; !sent_.is_empty() && now_s_() >= sent_.front().due_s; sent_.pop()) hand_over();
    return std::span(ended_).first(count);
  }

  void let_go() override {
    for (; !sent_.is_empty(); sent_.pop()) hand_over();
    other_->let_go();
  }

 private:
  struct Sent {
    std::size_t slot = 0;
    std::span<const std::byte> message;
    int to = 0, tag = 0;
    double due_s = 0.0;  // the earliest time to hand it over
  };
  struct Arrived {
    Completion what;
    double there_s = 0.0;  // the earliest time to report it
  };

  void hand_over() {
    const Sent& due = sent_.front();
    other_->send(due.slot, due.message, due.to, due.tag);
  }

  std::unique_ptr<Channel> other_;
  LinkModel& link_;
  const std::function<double()>& now_s_;
  std::vector<std::uint8_t> is_delayed_;  // by slot: whether it receives a message over the link
  Queue<Sent> sent_;
  Queue<Arrived> arrived_;
  std::vector<Completion> ended_;
};

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ThrottledTransport::ThrottledTransport(Transport& other, double bits_per_s,
                                       std::function<double()> now_s)
    : Transport(other.rank(), other.size()),
      other_(other),
      link_(bits_per_s),
      now_s_(now_s ? std::move(now_s) : steady_s) {}

std::unique_ptr<Channel> ThrottledTransport::open(std::size_t slots) {
  return std::make_unique<ThrottledChannel>(other_.open(slots), slots, link_, now_s_);
}

}  // namespace dp
