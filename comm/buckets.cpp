#include "comm/buckets.hpp"

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {

std::vector<Bucket> plan_buckets(std::span<const TensorSlot> tensors,
                                 const BucketOptions& options) {
  const std::string codec = parse_codec_spec(options.codec).text();
  const std::string exact = parse_codec_spec("none").text();
  const std::string small =
      parse_codec_spec(find_codec(parse_codec_spec(codec).name)->small_codec).text();
  std::vector<Bucket> buckets;
  bool is_open = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSlot& tensor = tensors[i];
    const bool is_first_1d = tensor.is_1d && (i == 0 || !tensors[i - 1].is_1d);
    DP_ASSERT(i == 0 || tensor.offset == tensors[i - 1].offset + tensors[i - 1].elements(),
              "tensor {} begins at {}", i, tensor.offset);
    DP_ASSERT(tensor.is_1d || i == 0 || !tensors[i - 1].is_1d,
              "tensor {} comes after the one-dimensional ones", i);
    const bool changes = i > 0 && !tensor.is_1d && tensor.is_exact != tensors[i - 1].is_exact;
    if (!is_open || is_first_1d || changes) {
      buckets.push_back({.offset = tensor.offset,
                         .elements = 0,
                         .codec = tensor.is_exact ? exact
                                  : tensor.is_1d  ? small
                                                  : codec,
                         .first_tensor = i,
                         .end_tensor = i});
      if (codec != exact && tensor.is_exact) buckets.back().why = "excluded by name";
      if (codec != exact && tensor.is_1d) buckets.back().why = "one-dimensional";
      is_open = true;
    }
    Bucket& bucket = buckets.back();
    bucket.elements += tensor.elements();
    bucket.end_tensor = i + 1;
    bucket.tensors.push_back(tensor);
    if (!tensor.is_1d) is_open = bucket.elements * sizeof(float) < options.bucket_bytes;
  }
  for (Bucket& bucket : buckets) {
    if (bucket.codec == codec && codec != exact &&
        bucket.elements * sizeof(float) < options.min_compress_bytes) {
      bucket.codec = small;
      bucket.why = "too small to gain";
    }
  }
  return buckets;
}

}  // namespace dp
