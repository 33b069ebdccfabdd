// Divides the gradient into buckets: the gradients that are sent together.
//
// The flat gradient has two regions: tensors of two or more dimensions in the order in which
// backward finishes them, then all one-dimensional ones (batch norm, bias). A *bucket* is a
// contiguous slice of the flat gradient, small enough that its exchange starts while backward is
// still running, and large enough that headers and latency do not matter. The one-dimensional
// region is sent in fp32 or with the codec's small_codec (CodecInfo), because it is small and its
// values do not tolerate coarse bins. The last gradients of this region are final only when
// backward ends, so training always waits for them. If this region is small, all of it is the last
// bucket. If it is large, only its last part is the last bucket, and the rest is sent before the
// last bucket of matrices.
//
// If few bits a value are planned (has_few_bits), one more message costs as many bytes as hundreds
// of values. Therefore the last bucket of matrices joins the bucket before it if it has less than
// half of bucket_bytes, and the one-dimensional region is a single bucket, sent as q4. If the ranks
// send SGD's velocities (velocity=), this bucket is exchanged in every eighth step only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// A tensor of the flat gradient, in floats.
struct TensorSlot {
  std::size_t offset = 0;
  std::size_t rows = 0;  // as a matrix, for codecs that factor; rows * columns floats
  std::size_t columns = 0;
  bool is_1d = false;
  // The codec that was chosen for this tensor by its name, if any.
  std::optional<CodecSpec> codec = std::nullopt;
  std::string name = {};

  [[nodiscard]] std::size_t elements() const { return rows * columns; }
};

struct BucketOptions {
  std::size_t bucket_bytes = 4u << 20;  // a bucket is closed when it has this many bytes of fp32
  CodecSpec codec = {};
  // Buckets below this size are sent like one-dimensional tensors, because their cost is headers
  // and latency, not bytes. For the same reason, a one-dimensional region below this size is a
  // single bucket.
  std::size_t min_compress_bytes = 16u << 10;
  // Whether the optimiser divides a gradient by the gradient's own magnitude, as Adam does. Such an
  // optimiser needs a gradient in every step.
  bool optimizer_normalizes = false;
};

struct Bucket {
  std::size_t offset = 0;
  std::size_t elements = 0;
  CodecSpec codec = {};
  std::size_t first_tensor = 0;  // [first_tensor, end_tensor) of the list given
  std::size_t end_tensor = 0;
  // For the start-up table: the reason if the codec is not the run's; otherwise empty.
  std::string_view why = {};
  std::string topology = {};  // by name; empty: the reducer's
  std::vector<TensorSlot> tensors = {};
  std::uint32_t every = 1;  // steps from one exchange to the next (spaced_exchange.hpp)
  // Whether the ranks exchange velocities instead of gradients (velocity.hpp). Stays the same while
  // a warm-up gives the bucket another codec.
  enum class Velocity : std::uint8_t { off, on, masked };
  Velocity velocity = Velocity::off;
};

// The buckets in the order in which they are exchanged. This is the order of their offsets, except
// for the first part of a large one-dimensional region. The tensors must cover the whole gradient
// without gaps, all one-dimensional ones last. A tensor is never split.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const TensorSlot> tensors,
                                               const BucketOptions& options);

}  // namespace dp
