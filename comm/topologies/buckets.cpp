#include "comm/topologies/buckets.hpp"

#include <algorithm>
#include <utility>

#include "comm/topologies/exchange_kinds.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// The last bucket is about the last eighth of the one-dimensional region (whole tensors). For
// ResNet-18, that bucket has 1,152 of the region's 9,610 values, from layers near the image.
// Sending all 9,610 after backward, as q8 on 4 ranks, would take 12 ms on a link of 10 Mbit/s.
constexpr std::size_t kLastPart = 8;

// How the one-dimensional region is sent at few bits a value: in every kSpacing-th training step,
// and with this codec. If it were sent in every step as q8, it would be a third of all bytes of
// ResNet-20 at 0.1 bits, and a fifth of all bytes of ResNet-18 at 0.025 bits.
constexpr std::uint32_t kSpacing = 8;
constexpr std::string_view kSmallAtFewBits = "q4:block=256";
constexpr std::string_view kWhySpaced = "one-dimensional, in every 8th step";

// Splits the last bucket. Its last tensors stay the last bucket. All other tensors become a new
// bucket, which is sent before the last bucket of matrices.
void send_most_vectors_earlier(std::vector<Bucket>& buckets) {
  Bucket& last = buckets.back();
  Bucket early = last;
  const std::size_t most = last.elements / kLastPart;
  std::size_t kept = 0, begin = last.tensors.size();
  while (begin > 0 && (kept == 0 || kept + last.tensors[begin - 1].elements() <= most)) {
    kept += last.tensors[--begin].elements();
  }
  if (begin == 0) return;
  const auto cut = static_cast<std::ptrdiff_t>(begin);
  early.tensors.erase(early.tensors.begin() + cut, early.tensors.end());
  early.elements -= kept;
  early.end_tensor = early.first_tensor + begin;
  last.tensors.erase(last.tensors.begin(), last.tensors.begin() + cut);
  last.offset += early.elements;
  last.elements = kept;
  last.first_tensor = early.end_tensor;
  buckets.insert(buckets.end() - 2, std::move(early));
}

// If the last bucket of matrices has fewer than `least` values and the same codec as the bucket
// before it, appends it to that bucket.
void join_a_small_end(std::vector<Bucket>& buckets, std::size_t least) {
  const auto end = std::ranges::find_if(
      buckets, [](const Bucket& bucket) { return bucket.tensors.front().is_1d; });
  if (end - buckets.begin() < 2) return;
  const Bucket last = *(end - 1);
  Bucket& joined = *(end - 2);
  if (last.elements >= least || last.codec != joined.codec) return;
  buckets.erase(end - 1);
  joined.elements += last.elements;
  joined.end_tensor = last.end_tensor;
  joined.tensors.insert(joined.tensors.end(), last.tensors.begin(), last.tensors.end());
}

// Lets the one-dimensional tensors of every bucket be exchanged only in every kSpacing-th step.
void space_vectors(std::vector<Bucket>& buckets) {
  for (Bucket& bucket : buckets) {
    const TensorSlot& tensor = bucket.tensors.front();
    if (!tensor.is_1d || tensor.codec || bucket.codec.is_exact()) continue;
    bucket.every = kSpacing;
    bucket.why = kWhySpaced;
  }
}

}  // namespace

std::vector<Bucket> plan_buckets(std::span<const TensorSlot> tensors,
                                 const BucketOptions& options) {
  const CodecSpec &codec = options.codec, exact = CodecSpec::exact();
  const bool is_brief = has_few_bits(codec);
  const CodecSpec small =
      parse_codec_spec(is_brief ? kSmallAtFewBits : find_codec(codec.name)->small_codec);
  std::vector<Bucket> buckets;
  bool is_open = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSlot& tensor = tensors[i];
    const bool is_first_1d = tensor.is_1d && (i == 0 || !tensors[i - 1].is_1d);
    DP_ASSERT(i == 0 || tensor.offset == tensors[i - 1].offset + tensors[i - 1].elements(),
              "tensor {} begins at {}", i, tensor.offset);
    DP_ASSERT(tensor.is_1d || i == 0 || !tensors[i - 1].is_1d,
              "tensor {} comes after one-dimensional tensors, which must be last", i);
    const CodecSpec& wanted = tensor.codec ? *tensor.codec : tensor.is_1d ? small : codec;
    const bool changes = i > 0 && wanted != buckets.back().codec;
    if (!is_open || is_first_1d || changes) {
      buckets.push_back({.offset = tensor.offset,
                         .elements = 0,
                         .codec = wanted,
                         .first_tensor = i,
                         .end_tensor = i});
      if (tensor.codec && wanted != codec) {
        buckets.back().why = wanted == exact ? "excluded by name" : "chosen by name";
      }
      if (codec != exact && tensor.is_1d) buckets.back().why = "one-dimensional";
      is_open = true;
    }
    Bucket& bucket = buckets.back();
    bucket.elements += tensor.elements();
    bucket.end_tensor = i + 1;
    bucket.tensors.push_back(tensor);
    if (!tensor.is_1d) is_open = bucket.elements * sizeof(float) < options.bucket_bytes;
  }
  if (is_brief) {
    join_a_small_end(buckets, options.bucket_bytes / sizeof(float) / 2);
    if (small.feedback && takes_momentum(codec) && !options.optimizer_normalizes) {
      space_vectors(buckets);
    }
  }
  for (Bucket& bucket : buckets) {
    if (bucket.codec == codec && codec != exact &&
        bucket.elements * sizeof(float) < options.min_compress_bytes) {
      bucket.codec = small;
      bucket.why = "too small to gain";
    }
  }
  // With a single bucket of matrices nothing is sent before backward ends, so a split would not
  // help.
  if (!is_brief && !tensors.empty() && tensors.back().is_1d && buckets.size() > 2 &&
      buckets.back().elements * sizeof(float) >= options.min_compress_bytes) {
    send_most_vectors_earlier(buckets);
  }
  return buckets;
}

}  // namespace dp
