#include "io/log/run_log_rows.hpp"

#include <type_traits>
#include <utility>
#include <vector>

namespace dp {
namespace {

template <class T>
constexpr LogType log_type() {
  if constexpr (std::is_same_v<T, std::int64_t>) return LogType::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return LogType::uint64;
  if constexpr (std::is_same_v<T, double>) return LogType::float64;
}

template <class Row, class T>
std::size_t offset_of(T Row::*member) {
  static_assert(std::is_standard_layout_v<Row>);
  const Row row{};
  return static_cast<std::size_t>(reinterpret_cast<const char*>(&(row.*member)) -
                                  reinterpret_cast<const char*>(&row));
}

// Collects the columns of a row type in order.
template <class Row>
class Columns {
 public:
  template <class T>
  Columns& add(const char* name, T Row::*member, const char* unit = "1") {
    fields_.push_back({name, unit, offset_of(member), log_type<T>()});
    return *this;
  }
  // Adds a nested struct's columns as if they were the row's own.
  template <class Part>
  Columns& add_all(Part Row::*member, std::span<const LogField> fields) {
    for (LogField field : fields) {
      field.offset += offset_of(member);
      fields_.push_back(std::move(field));
    }
    return *this;
  }
  std::vector<LogField> take() { return std::move(fields_); }

 private:
  std::vector<LogField> fields_;
};

std::vector<LogField> times_and_bytes() {
  using T = TimesAndBytes;
  return Columns<T>()
      .add("epoch_s", &T::epoch_s, "s")
      .add("data_s", &T::data_s, "s")
      .add("forward_s", &T::forward_s, "s")
      .add("backward_s", &T::backward_s, "s")
      .add("optimizer_s", &T::optimizer_s, "s")
      .add("compute_s", &T::compute_s, "s")
      .add("encode_s", &T::encode_s, "s")
      .add("wire_s", &T::wire_s, "s")
      .add("decode_s", &T::decode_s, "s")
      .add("peer_wait_s", &T::peer_wait_s, "s")
      .add("comm_s", &T::comm_s, "s")
      .add("exposed_comm_s", &T::exposed_comm_s, "s")
      .add("other_s", &T::other_s, "s")
      .add("eval_s", &T::eval_s, "s")
      .add("checkpoint_s", &T::checkpoint_s, "s")
      .add("sent_bytes", &T::sent_bytes, "byte")
      .add("received_bytes", &T::received_bytes, "byte")
      .take();
}

// Columns that were added later, which stand at the end of a row.
std::vector<LogField> later_bytes() {
  using T = TimesAndBytes;
  return Columns<T>()
      .add("control_bytes", &T::control_bytes, "byte")
      .add("statistics_s", &T::statistics_s, "s")
      .add("statistics_bytes", &T::statistics_bytes, "byte")
      .take();
}

}  // namespace

template <>
std::span<const LogField> log_fields<EpochRow>() {
  using T = EpochRow;
  static const std::vector<LogField> fields =
      Columns<T>()
          .add("epoch", &T::epoch)
          .add("samples", &T::samples)
          .add("global_batch", &T::global_batch)
          .add("learning_rate", &T::learning_rate)
          .add("train_loss", &T::train_loss)
          .add("train_accuracy", &T::train_accuracy)
          .add("test_loss", &T::test_loss)
          .add("test_accuracy", &T::test_accuracy)
          .add_all(&T::times, times_and_bytes())
          .add("codec_relative_error", &T::codec_relative_error)
          .add("residual_norm", &T::residual_norm)
          .add("replica_hash", &T::replica_hash)
          .add("skipped_steps", &T::skipped_steps)
          .add("delivered_relative_error", &T::delivered_relative_error)
          .add("sample_bytes", &T::sample_bytes, "byte")
          .add("saturation", &T::saturation)
          .add_all(&T::times, later_bytes())
          .add("exchanges", &T::exchanges)
          .take();
  return fields;
}

template <>
std::span<const LogField> log_fields<RankRow>() {
  using T = RankRow;
  static const std::vector<LogField> fields = Columns<T>()
                                                  .add("epoch", &T::epoch)
                                                  .add("rank", &T::rank)
                                                  .add("host", &T::host)
                                                  .add("device", &T::device)
                                                  .add_all(&T::times, times_and_bytes())
                                                  .add_all(&T::times, later_bytes())
                                                  .take();
  return fields;
}

template <>
std::span<const LogField> log_fields<BucketRow>() {
  using T = BucketRow;
  static const std::vector<LogField> fields =
      Columns<T>()
          .add("epoch", &T::epoch)
          .add("bucket", &T::bucket)
          .add("elements", &T::elements)
          .add("codec", &T::codec)
          .add("topology", &T::topology)
          .add("sent_bytes", &T::sent_bytes, "byte")
          .add("encode_s", &T::encode_s, "s")
          .add("wire_s", &T::wire_s, "s")
          .add("decode_s", &T::decode_s, "s")
          .add("peer_wait_s", &T::peer_wait_s, "s")
          .add("relative_error", &T::relative_error)
          .add("residual_norm", &T::residual_norm)
          .add("delivered_relative_error", &T::delivered_relative_error)
          .add("saturation", &T::saturation)
          .add("residual_growth", &T::residual_growth)
          .add("residual_age", &T::residual_age)
          .take();
  return fields;
}

template <>
std::span<const LogField> log_fields<TensorRow>() {
  using T = TensorRow;
  static const std::vector<LogField> fields = Columns<T>()
                                                  .add("epoch", &T::epoch)
                                                  .add("tensor", &T::tensor)
                                                  .add("elements", &T::elements)
                                                  .add("waiting", &T::waiting)
                                                  .add("longest_wait", &T::longest_wait)
                                                  .take();
  return fields;
}

template <>
std::span<const LogField> log_fields<SessionRow>() {
  using T = SessionRow;
  static const std::vector<LogField> fields = Columns<T>()
                                                  .add("start", &T::start, "s")
                                                  .add("first_epoch", &T::first_epoch)
                                                  .add("first_step", &T::first_step)
                                                  .add("world_size", &T::world_size)
                                                  .take();
  return fields;
}

template <>
std::span<const LogField> log_fields<StepRow>() {
  using T = StepRow;
  static const std::vector<LogField> fields = Columns<T>()
                                                  .add("step", &T::step)
                                                  .add("epoch", &T::epoch)
                                                  .add("train_loss", &T::train_loss)
                                                  .add("step_s", &T::step_s, "s")
                                                  .add("compute_s", &T::compute_s, "s")
                                                  .add("comm_s", &T::comm_s, "s")
                                                  .add("exposed_comm_s", &T::exposed_comm_s, "s")
                                                  .add("learning_rate", &T::learning_rate)
                                                  .add("data_s", &T::data_s, "s")
                                                  .add("forward_s", &T::forward_s, "s")
                                                  .add("backward_s", &T::backward_s, "s")
                                                  .add("optimizer_s", &T::optimizer_s, "s")
                                                  .add("other_s", &T::other_s, "s")
                                                  .add("encode_s", &T::encode_s, "s")
                                                  .add("wire_s", &T::wire_s, "s")
                                                  .add("decode_s", &T::decode_s, "s")
                                                  .add("peer_wait_s", &T::peer_wait_s, "s")
                                                  .add("sent_bytes", &T::sent_bytes, "byte")
                                                  .add("received_bytes", &T::received_bytes, "byte")
                                                  .add("planned_bits", &T::planned_bits)
                                                  .add("partial_bits", &T::partial_bits)
                                                  .add("total_bits", &T::total_bits)
                                                  .add("partial_step", &T::partial_step)
                                                  .add("total_step", &T::total_step)
                                                  .add("link_bytes_per_s", &T::link_bytes_per_s)
                                                  .add("hidden_bits", &T::hidden_bits)
                                                  .add("relative_error", &T::relative_error)
                                                  .add("residual_growth", &T::residual_growth)
                                                  .add("guard_factor", &T::guard_factor)
                                                  .add("exchanged", &T::exchanged)
                                                  .add("wished_bits", &T::wished_bits)
                                                  .add("binding_bucket", &T::binding_bucket)
                                                  .take();
  return fields;
}

}  // namespace dp
