// The state of a run: everything that a resumed run must have again.
//
// Every owner of state (parameters, running statistics, an optimiser, an exchange, the training
// loop) has a method list_state(visitor) that lists each of its parts, always in the same order.
// Everything that saves a run walks this one list. So do the replica hash and the test that
// restores a run (tests/app/training/state_test.cpp). Anything not listed is not state, and is lost
// between runs.
//
// A part is either a StateBlock or a StateText. A block is memory whose size does not change within
// an epoch. (At the start of an epoch a warm-up may change codecs, so call begin_epoch() before
// listing.) A text may have any length; an example is the table of algorithm choices. Names are
// unique within a run: an owner that exists several times adds a prefix.
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

enum class StateType { f32, f64, i64, u64, raw };  // raw: a struct, readable by the same build only
enum class StatePlace { host, device };            // device: access through Device only
enum class StateShare { replicated, own };         // the same on all ranks, or per rank
// If a run resumes with another number of ranks, a rank may take over the saved blocks of several
// ranks. The result is the blocks' sum (for values still to be sent), their mean (for statistics),
// or the first block (for times). With `spread`, the sum over all ranks is divided equally among
// the new ranks (for squares of noise, which add up).
enum class StateMerge { sum, mean, first, spread };
// A block may have one number for each value of the flat gradient, for each row of a tensor, or for
// each tensor. `none`: the block is not divided by tensors.
enum class StateGrain { none, value, row, tensor };

// Prefix of the names of the model's parameters, which are listed in the order of the flat buffer.
inline constexpr std::string_view kParameterState = "parameters/";

struct StateBlock {
  std::string name;
  std::span<std::byte> bytes;
  StateType type = StateType::f32;
  StatePlace place = StatePlace::host;
  StateShare share = StateShare::replicated;
  StateMerge merge = StateMerge::sum;
  StateGrain grain = StateGrain::none;
  // If set, this function is called instead of using `merge`. It adds another rank's bytes to the
  // block.
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

  // A span of numbers in host or device memory.
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
  // A struct of numbers in host memory, one per rank. add(sum, more) adds another rank's struct.
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

// Collects everything that owners list, in order.
class StateList final : public StateVisitor {
 public:
  void block(const StateBlock& block) override { blocks.push_back(block); }
  void text(const StateText& text) override { texts.push_back(text); }

  std::vector<StateBlock> blocks;
  std::vector<StateText> texts;
};

}  // namespace dp
