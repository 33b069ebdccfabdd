// topk: sends the k largest magnitudes of a segment (Stich et al. 2018; Aji and Heafield 2017). dgc
// (Lin et al. 2018) has the same payload; its momentum is computed by the exchange.
//
//     k = ceil(ratio n), at least 1; ties to the lower index; zeros are not sent
// Wire format: sparse.hpp. The selection is exact and the same on every machine. Values are
// selected within each segment. A layer with small gradients may wait long if it shares a segment
// with a layer of large gradients; its values are sent once enough has accumulated in the residual.
//
// Contraction: the n - k smallest values stay in the residual. The sum of their squares is at most
// a fraction 1 - k/n of all squares, so c = sqrt(1 - ratio) for any n. (A segment of equal values
// reaches this bound.) With value=bf16 a value that is sent leaves at most 2^-8 of itself: c^2 = 1
// - ratio + 2^-16 ratio, for values in bf16's normal range.
#pragma once

#include <cmath>

#include "kernels/codecs/sparse.hpp"

namespace dp {

class TopK final : public SparseCodec {
 public:
  explicit TopK(const CodecSpec& codec_spec)
      : SparseCodec(codec_spec), ratio_(codec_spec.number("ratio")) {}

  [[nodiscard]] double contraction() const override {
    // share_of may ignore up to a millionth of a value, so slightly less than `ratio` may be sent.
    const double share = ratio_ < 1.0 ? ratio_ * (1.0 - 1e-6) : 1.0;
    return std::sqrt(1.0 - share + (is_bf16() ? 0x1p-16 * share : 0.0));
  }

 protected:
  [[nodiscard]] std::size_t most_sent(std::size_t n) const override {
    return sparse::share_of(n, ratio_);
  }
  [[nodiscard]] sparse::Cut cut(const float* v, std::size_t n) const override {
    return sparse::cut_of_largest(v, n, most_sent(n));
  }

 private:
  double ratio_;
};

}  // namespace dp
