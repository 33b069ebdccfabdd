#include "io/log/run_log_rows.hpp"

#include <cstring>
#include <initializer_list>
#include <type_traits>
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

// One column, or the columns of a nested struct, which become columns of the row.
template <class Row>
struct Columns {
  template <class T>
  Columns(const char* name, T Row::*member, const char* unit = "1")
      : fields{{name, unit, offset_of(member), log_type<T>()}} {}
  template <class Part>
  Columns(Part Row::*member, std::span<const LogField> of_part)
      : fields(of_part.begin(), of_part.end()) {
    for (LogField& field : fields) field.offset += offset_of(member);
  }
  std::vector<LogField> fields;
};

template <class Row>
std::vector<LogField> list(std::initializer_list<Columns<Row>> columns) {
  std::vector<LogField> all;
  for (const Columns<Row>& each : columns) {
    all.insert(all.end(), each.fields.begin(), each.fields.end());
  }
  return all;
}

const std::vector<LogField>& times_and_bytes() {
  using T = TimesAndBytes;
  static const std::vector<LogField> fields =
      list<T>({{"epoch_s", &T::epoch_s, "s"},
               {"data_s", &T::data_s, "s"},
               {"forward_s", &T::forward_s, "s"},
               {"backward_s", &T::backward_s, "s"},
               {"optimizer_s", &T::optimizer_s, "s"},
               {"compute_s", &T::compute_s, "s"},
               {"encode_s", &T::encode_s, "s"},
               {"wire_s", &T::wire_s, "s"},
               {"decode_s", &T::decode_s, "s"},
               {"peer_wait_s", &T::peer_wait_s, "s"},
               {"comm_s", &T::comm_s, "s"},
               {"exposed_comm_s", &T::exposed_comm_s, "s"},
               {"other_s", &T::other_s, "s"},
               {"eval_s", &T::eval_s, "s"},
               {"checkpoint_s", &T::checkpoint_s, "s"},
               {"sent_bytes", &T::sent_bytes, "byte"},
               {"received_bytes", &T::received_bytes, "byte"},
               {"control_bytes", &T::control_bytes, "byte"},
               {"statistics_s", &T::statistics_s, "s"},
               {"statistics_bytes", &T::statistics_bytes, "byte"}});
  return fields;
}

// first_times() has all columns but the last three. Those three were added later, so in files they
// stand near the end of a row.
std::span<const LogField> first_times() { return std::span(times_and_bytes()).first(17); }
std::span<const LogField> later_times() { return std::span(times_and_bytes()).subspan(17); }

template <class T>
T sum_over(std::span<const TimesAndBytes> ranks, std::size_t offset) {
  T sum = 0;
  for (const TimesAndBytes& rank : ranks) {
    T value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&rank) + offset, sizeof(value));
    sum += value;
  }
  return sum;
}

}  // namespace

TimesAndBytes over_ranks(std::span<const TimesAndBytes> ranks) {
  TimesAndBytes all;
  for (const LogField& field : times_and_bytes()) {
    std::byte* const place = reinterpret_cast<std::byte*>(&all) + field.offset;
    if (field.type == LogType::float64) {
      const double mean = sum_over<double>(ranks, field.offset) / static_cast<double>(ranks.size());
      std::memcpy(place, &mean, sizeof(mean));
    } else {
      const auto sum = sum_over<std::int64_t>(ranks, field.offset);
      std::memcpy(place, &sum, sizeof(sum));
    }
  }
  return all;
}

template <>
std::span<const LogField> log_fields<EpochRow>() {
  using T = EpochRow;
  static const std::vector<LogField> fields =
      list<T>({{"epoch", &T::epoch},
               {"samples", &T::samples},
               {"global_batch", &T::global_batch},
               {"learning_rate", &T::learning_rate},
               {"train_loss", &T::train_loss},
               {"train_accuracy", &T::train_accuracy},
               {"test_loss", &T::test_loss},
               {"test_accuracy", &T::test_accuracy},
               {&T::times, first_times()},
               {"codec_relative_error", &T::codec_relative_error},
               {"residual_norm", &T::residual_norm},
               {"replica_hash", &T::replica_hash},
               {"skipped_steps", &T::skipped_steps},
               {"delivered_relative_error", &T::delivered_relative_error},
               {"sample_bytes", &T::sample_bytes, "byte"},
               {"saturation", &T::saturation},
               {&T::times, later_times()},
               {"exchanges", &T::exchanges},
               {"wire_bytes", &T::wire_bytes, "byte"}});
  return fields;
}

template <>
std::span<const LogField> log_fields<RankRow>() {
  using T = RankRow;
  static const std::vector<LogField> fields = list<T>({{"epoch", &T::epoch},
                                                       {"rank", &T::rank},
                                                       {"host", &T::host},
                                                       {"device", &T::device},
                                                       {&T::times, first_times()},
                                                       {&T::times, later_times()},
                                                       {"wire_bytes", &T::wire_bytes, "byte"}});
  return fields;
}

template <>
std::span<const LogField> log_fields<BucketRow>() {
  using T = BucketRow;
  static const std::vector<LogField> fields =
      list<T>({{"epoch", &T::epoch},
               {"bucket", &T::bucket},
               {"elements", &T::elements},
               {"codec", &T::codec},
               {"topology", &T::topology},
               {"sent_bytes", &T::sent_bytes, "byte"},
               {"encode_s", &T::encode_s, "s"},
               {"wire_s", &T::wire_s, "s"},
               {"decode_s", &T::decode_s, "s"},
               {"peer_wait_s", &T::peer_wait_s, "s"},
               {"relative_error", &T::relative_error},
               {"residual_norm", &T::residual_norm},
               {"delivered_relative_error", &T::delivered_relative_error},
               {"saturation", &T::saturation},
               {"residual_growth", &T::residual_growth},
               {"residual_age", &T::residual_age}});
  return fields;
}

template <>
std::span<const LogField> log_fields<TensorRow>() {
  using T = TensorRow;
  static const std::vector<LogField> fields = list<T>({{"epoch", &T::epoch},
                                                       {"tensor", &T::tensor},
                                                       {"elements", &T::elements},
                                                       {"waiting", &T::waiting},
                                                       {"longest_wait", &T::longest_wait}});
  return fields;
}

template <>
std::span<const LogField> log_fields<SessionRow>() {
  using T = SessionRow;
  static const std::vector<LogField> fields = list<T>({{"start", &T::start, "s"},
                                                       {"first_epoch", &T::first_epoch},
                                                       {"first_step", &T::first_step},
                                                       {"world_size", &T::world_size}});
  return fields;
}

template <>
std::span<const LogField> log_fields<ShareRow>() {
  using T = ShareRow;
  static const std::vector<LogField> fields = list<T>({{"step", &T::step},
                                                       {"rank", &T::rank},
                                                       {"images", &T::images},
                                                       {"compute_s", &T::compute_s, "s"},
                                                       {"step_s", &T::step_s, "s"},
                                                       {"fixed_s", &T::fixed_s, "s"},
                                                       {"image_s", &T::image_s, "s"}});
  return fields;
}

template <>
std::span<const LogField> log_fields<StepRow>() {
  using T = StepRow;
  static const std::vector<LogField> fields =
      list<T>({{"step", &T::step},
               {"epoch", &T::epoch},
               {"train_loss", &T::train_loss},
               {"step_s", &T::step_s, "s"},
               {"compute_s", &T::compute_s, "s"},
               {"comm_s", &T::comm_s, "s"},
               {"exposed_comm_s", &T::exposed_comm_s, "s"},
               {"learning_rate", &T::learning_rate},
               {"data_s", &T::data_s, "s"},
               {"forward_s", &T::forward_s, "s"},
               {"backward_s", &T::backward_s, "s"},
               {"optimizer_s", &T::optimizer_s, "s"},
               {"other_s", &T::other_s, "s"},
               {"encode_s", &T::encode_s, "s"},
               {"wire_s", &T::wire_s, "s"},
               {"decode_s", &T::decode_s, "s"},
               {"peer_wait_s", &T::peer_wait_s, "s"},
               {"sent_bytes", &T::sent_bytes, "byte"},
               {"received_bytes", &T::received_bytes, "byte"},
               {"planned_bits", &T::planned_bits},
               {"partial_bits", &T::partial_bits},
               {"total_bits", &T::total_bits},
               {"partial_step", &T::partial_step},
               {"total_step", &T::total_step},
               {"link_bytes_per_s", &T::link_bytes_per_s},
               {"hidden_bits", &T::hidden_bits},
               {"relative_error", &T::relative_error},
               {"residual_growth", &T::residual_growth},
               {"guard_factor", &T::guard_factor},
               {"exchanged", &T::exchanged},
               {"wished_bits", &T::wished_bits},
               {"binding_bucket", &T::binding_bucket}});
  return fields;
}

}  // namespace dp
