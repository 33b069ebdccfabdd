// Which gradients are sent together.
//
// The flat gradient has two regions: tensors of two or more dimensions in the order in which
// backward finishes them, then all one-dimensional ones (batch norm, bias). A *bucket* is a
// contiguous slice of it. It is small enough that its exchange starts while backward still runs,
// and large enough that headers and latency do not matter. The one-dimensional region is sent in
// fp32 or in what the codec has for small tensors (CodecInfo::small_codec): it is small, and its
// values tolerate no coarse bins. Its last gradients are final when backward ends, so training
// always waits for them. A small region is the last bucket. Of a large one only the last part is;
// the rest goes before the last bucket of matrices.
//
// At few planned bits (has_few_bits), one more message costs as many bytes as hundreds of values.
// A last bucket of matrices below half of bucket_bytes then joins the bucket before it, and the
// one-dimensional region is one bucket, in q4. If the ranks send SGD's velocities (velocity=), it
// is exchanged in every eighth step.
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
  // Chosen by its name, in place of the run's codec.
  std::optional<CodecSpec> codec = std::nullopt;
  std::string name = {};

  [[nodiscard]] std::size_t elements() const { return rows * columns; }
};

struct BucketOptions {
  std::size_t bucket_bytes = 4u << 20;  // a bucket is closed when it has this many bytes of fp32
  CodecSpec codec = {};
  // Smaller buckets are sent as one-dimensional tensors are, because their cost is headers and
  // latency, not bytes. For the same reason a smaller one-dimensional region is one bucket.
  std::size_t min_compress_bytes = 16u << 10;
  // Whether the optimiser divides a gradient by its own magnitude (Adam). It must then get one in
  // every step.
  bool optimizer_normalizes = false;
};

struct Bucket {
  std::size_t offset = 0;
  std::size_t elements = 0;
  CodecSpec codec = {};
  std::size_t first_tensor = 0;  // [first_tensor, end_tensor) of the list given
  std::size_t end_tensor = 0;
  // For the start-up table: why the codec is not the one asked for; empty if it is.
  std::string_view why = {};
  std::string topology = {};  // by name; empty: the reducer's
  std::vector<TensorSlot> tensors = {};
  std::uint32_t every = 1;  // steps from one exchange to the next (spaced_exchange.hpp)
  // Whether the ranks' velocities are added instead of their gradients (velocity.hpp), also while a
  // warm-up gives the bucket another codec.
  enum class Velocity : std::uint8_t { off, on, masked };
  Velocity velocity = Velocity::off;
};

// The buckets in the order in which they are exchanged, which is the order of their offsets, but
// for the first part of the one-dimensional region. The tensors must follow each other without
// gaps, all one-dimensional ones last; together they are the whole gradient. A tensor is never
// split.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const TensorSlot> tensors,
                                               const BucketOptions& options);

}  // namespace dp
