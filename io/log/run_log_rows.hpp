// The rows of the run log's tables.
//
// Each row is a plain struct. Its columns (name, unit, place, type) are listed once, in
// run_log_rows.cpp, in the order of the file; new columns are added at the end of a list. Times are
// in seconds, bytes are the bytes handed to MPI, accuracies are fractions. The parts of an epoch's
// or a step's time add up to it exactly. A value that was not measured is NaN, which is the default
// of every field that may stay unmeasured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace dp {

enum class LogType { int64, uint64, float64 };

struct LogField {
  std::string name;
  std::string unit;  // "s", "byte", or "1" for a plain number
  std::size_t offset;
  LogType type;
};

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// The parts of an epoch's time, and the bytes sent and received. In /epochs, times are means over
// ranks and bytes are sums over ranks; in /ranks both are the rank's own.
struct TimesAndBytes {
  double epoch_s = 0, data_s = 0, forward_s = 0, backward_s = 0, optimizer_s = 0, compute_s = 0;
  double encode_s = 0, wire_s = 0, decode_s = 0, peer_wait_s = 0, comm_s = 0, exposed_comm_s = 0;
  double other_s = 0, eval_s = 0, checkpoint_s = 0;
  std::int64_t sent_bytes = 0, received_bytes = 0;
  // All sent bytes that are not gradients: running statistics, hashes, sums of losses, rows of this
  // log, liveness notices. Only the sample that measures the error of the summed gradients is
  // counted elsewhere, in EpochRow::sample_bytes.
  std::int64_t control_bytes = 0;
  // For batch normalisation over the images of all ranks. statistics_s: the time for which layers
  // waited for statistics of other ranks (part of exposed_comm_s). statistics_bytes: the size of
  // these statistics (not part of sent_bytes).
  double statistics_s = 0;
  std::int64_t statistics_bytes = 0;
};

// Computes a row's values for /epochs from the ranks' values: means for columns in seconds, sums
// for all other columns.
[[nodiscard]] TimesAndBytes over_ranks(std::span<const TimesAndBytes> ranks);

struct EpochRow {
  std::int64_t epoch = 0, samples = 0, global_batch = 0;
  double learning_rate = 0;
  double train_loss = kNotMeasured, train_accuracy = kNotMeasured;
  double test_loss = kNotMeasured, test_accuracy = kNotMeasured;
  TimesAndBytes times = {};
  double codec_relative_error = kNotMeasured, residual_norm = kNotMeasured;
  std::uint64_t replica_hash = 0;
  std::int64_t skipped_steps = 0;
  // In one step of the epoch, a sample of the summed gradients, as ranks received them, is compared
  // with the exact sums. The relative error is stored, and the bytes sent for the sample (not part
  // of sent_bytes).
  double delivered_relative_error = kNotMeasured;
  std::int64_t sample_bytes = 0;
  // In the same step, the fraction of sampled values that are too large for their codec.
  double saturation = kNotMeasured;
  std::int64_t exchanges = 0;  // of gradients: one per step or per round
  // The bytes that the ranks have sent since the last row, including acknowledgements and the
  // headers of TCP, IP and Ethernet. They are measured on the TCP connections if possible,
  // otherwise computed from the messages. The attribute `wire_bytes_are` records which of the two
  // was done.
  double wire_bytes = kNotMeasured;
};

struct RankRow {
  std::int64_t epoch = 0, rank = 0;
  std::int64_t host = 0, device = 0;  // indices into the attributes hosts and devices
  TimesAndBytes times = {};
  double wire_bytes = kNotMeasured;  // of this rank, as in EpochRow
};

struct BucketRow {
  std::int64_t epoch = 0, bucket = 0, elements = 0;
  std::int64_t codec = 0, topology = 0;  // indices into codec_names and topology_names
  std::int64_t sent_bytes = 0;
  double encode_s = 0, wire_s = 0, decode_s = 0, peer_wait_s = 0;
  double relative_error = kNotMeasured, residual_norm = kNotMeasured;
  double delivered_relative_error = kNotMeasured, saturation = kNotMeasured;  // as in EpochRow
  // From a sample of encodes: the norm of the residual divided by the norm of the gradient, and the
  // mean number of training steps before a residual value is sent.
  double residual_growth = kNotMeasured, residual_age = kNotMeasured;
};

// A tensor that at least one exchange of the epoch skipped entirely.
struct TensorRow {
  std::int64_t epoch = 0, tensor = 0, elements = 0;  // tensor: an index into tensor_names
  // Both are numbers of exchanges. `waiting` exchanges have passed, at the end of the epoch, since
  // any part of the tensor was last sent. `longest_wait` is the longest such wait that ended in
  // this epoch or was still going on at the end of the epoch.
  std::int64_t waiting = 0, longest_wait = 0;
};

// One session: a start of the program that wrote into the log.
struct SessionRow {
  double start = 0;  // Unix time
  std::int64_t first_epoch = 0, first_step = 0, world_size = 0;
};

struct StepRow {
  std::int64_t step = 0, epoch = 0;
  double train_loss = kNotMeasured, step_s = 0, compute_s = 0, comm_s = 0, exposed_comm_s = 0;
  double learning_rate = 0, data_s = 0, forward_s = 0, backward_s = 0, optimizer_s = 0, other_s = 0;
  double encode_s = 0, wire_s = 0, decode_s = 0, peer_wait_s = 0;
  std::int64_t sent_bytes = 0, received_bytes = 0;
  // For codecs whose bits per value vary ("ecq:bits=", "ecq:error=", "auto"). The first three are
  // bits per value: as planned, as sent for partial sums, and as sent for the complete sums. The
  // next two are the quantiser's step sizes for partial and complete sums. The last two are only
  // for "auto": the bandwidth of rank 0's link, and the bits per value that this link can transfer
  // without delaying the step.
  double planned_bits = kNotMeasured, partial_bits = kNotMeasured, total_bits = kNotMeasured;
  double partial_step = kNotMeasured, total_step = kNotMeasured;
  double link_bytes_per_s = kNotMeasured, hidden_bits = kNotMeasured;
  // The last measurement of rank 0's encodes: the relative error, and the norm of the residual
  // divided by the norm of the gradient. If the second ratio is too large, the planned bits are
  // multiplied by guard_factor.
  double relative_error = kNotMeasured, residual_growth = kNotMeasured;
  double guard_factor = kNotMeasured;
  std::int64_t exchanged = 0;  // 1 if ranks exchanged in this step or, in rounds, after it
  // For "auto": the smallest of the ranks' hidden_bits. The next step's plan follows this number.
  double wished_bits = kNotMeasured;
  // For "auto": the first bucket for which rank 0's link has no time left. This bucket limits
  // hidden_bits.
  double binding_bucket = kNotMeasured;
};

// The images that a rank computes in each step from this one on (--shares), with the measurements
// that led to them.
struct ShareRow {
  std::int64_t step = 0, rank = 0, images = 0;  // steps count from 1, as in /steps
  // Measurements before this choice. Both are times of one of the rank's steps: compute_s excludes
  // the waits for other ranks, step_s includes these waits.
  double compute_s = kNotMeasured, step_s = kNotMeasured;
  // The model of the rank's computation: fixed_s + image_s x images.
  double fixed_s = kNotMeasured, image_s = kNotMeasured;
};

// The columns of a row type. Specialised for the seven types above.
template <class Row>
[[nodiscard]] std::span<const LogField> log_fields();
template <>
std::span<const LogField> log_fields<EpochRow>();
template <>
std::span<const LogField> log_fields<RankRow>();
template <>
std::span<const LogField> log_fields<BucketRow>();
template <>
std::span<const LogField> log_fields<TensorRow>();
template <>
std::span<const LogField> log_fields<SessionRow>();
template <>
std::span<const LogField> log_fields<ShareRow>();
template <>
std::span<const LogField> log_fields<StepRow>();

}  // namespace dp
