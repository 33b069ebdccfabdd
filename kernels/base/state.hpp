// What a run is made of: everything that a run which goes on later must have again.
//
// Every owner of state (parameters, running statistics, an optimiser, an exchange, the training
// loop) has a method list_state(visitor) that tells each of its parts, always in the same order.
// The replica hash and the test of restoring (tests/app/training/state_test.cpp) walk this one
// list, as everything that saves a run must; what is not listed is not state, and is lost between
// runs.
//
// A part is a block of memory whose size does not change within an epoch (StateBlock; at the start
// of an epoch a warm-up may change codecs, so begin_epoch() comes before the list), or a text that
// may have any length, such as the choices of algorithms (StateText). Names are unique in a run:
// owners that exist several times put a prefix in front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dp {

enum class StateType { f32, f64, i64, u64, raw };  // raw: a struct, for the same build alone
enum class StatePlace { host, device };     // device: to be read and written through Device alone
enum class StateShare { replicated, own };  // the same on all ranks, or a rank's own
// How a rank combines the parts of earlier ranks when a run resumes with another number of ranks.
// How a rank combines the saved parts that it takes over: their sum (what is still to be sent),
// their mean (statistics), or the first one (times). spread: every rank takes an equal share of the
// sum over all parts (squares of noise, which add up).
enum class StateMerge { sum, mean, first, spread };
// A block has one number for each value of the flat gradient, for each row of its tensors, or for
// each tensor. none: tensors do not divide the block.
enum class StateGrain { none, value, row, tensor };

// The names of the model's parameters begin with it, in the order of the flat buffer.
inline constexpr std::string_view kParameterState = "parameters/";

struct StateBlock {
  std::string name;
  std::span<std::byte> bytes;
  StateType type = StateType::f32;
  StatePlace place = StatePlace::host;
  StateShare share = StateShare::replicated;
  StateMerge merge = StateMerge::sum;
  StateGrain grain = StateGrain::none;
  // If set, it is called instead, to add another rank's bytes to the block.
  std::function<void(std::span<const std::byte> other)> add = {};
};

struct StateText {
  std::string name;
  std::function<std::string()> get;
  std::function<void(const std::string&)> set;
  StateShare share = StateShare::replicated;
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void block(const StateBlock& block) = 0;
  virtual void text(const StateText& text) = 0;

  // Values of host or device memory.
  template <class T>
  void values(std::string name, std::span<T> values, StateShare share,
              StatePlace place = StatePlace::host, StateMerge merge = StateMerge::sum,
              StateGrain grain = StateGrain::none) {
    block({.name = std::move(name),
           .bytes = std::as_writable_bytes(values),
           .type = type_of<T>(),
           .place = place,
           .share = share,
           .merge = merge,
           .grain = grain});
  }
  // A struct of numbers in host memory, a rank's own. add(sum, more) adds another rank's to it.
  template <class T, class Add>
  requires std::is_trivially_copyable_v<T>
  void object(std::string name, T& object, Add add) {
    block({.name = std::move(name),
           .bytes = std::as_writable_bytes(std::span<T>(&object, 1)),
           .type = StateType::raw,
           .place = StatePlace::host,
           .share = StateShare::own,
           .add = [&object, add](std::span<const std::byte> other) {
             T more;
             std::memcpy(static_cast<void*>(&more), other.data(), sizeof(T));
             add(object, more);
           }});
  }
  // One number in host memory.
  template <class T>
  void value(std::string name, T& number, StateShare share = StateShare::replicated,
             StateMerge merge = StateMerge::sum) {
    values(std::move(name), std::span<T>(&number, 1), share, StatePlace::host, merge);
  }

 private:
  template <class T>
  static constexpr StateType type_of() {
    if constexpr (std::is_same_v<T, float>) return StateType::f32;
    if constexpr (std::is_same_v<T, double>) return StateType::f64;
    if constexpr (std::is_same_v<T, std::int64_t>) return StateType::i64;
    if constexpr (std::is_same_v<T, std::uint64_t>) return StateType::u64;
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> ||
                      std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint64_t>,
                  "values of this type have no StateType");
  }
};

// All that owners list, in order.
class StateList final : public StateVisitor {
 public:
  void block(const StateBlock& block) override { blocks.push_back(block); }
  void text(const StateText& text) override { texts.push_back(text); }

  std::vector<StateBlock> blocks;
  std::vector<StateText> texts;
};

}  // namespace dp
