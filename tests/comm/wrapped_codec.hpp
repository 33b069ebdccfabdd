// Codecs for tests that wrap a real one.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/codecs/codec.hpp"

namespace dp::testing_support {

// Passes every call to the codec of that spec.
class WrappedCodec : public Codec {
 public:
  explicit WrappedCodec(const CodecSpec& spec) : Codec(spec), codec_(make_codec(spec)) {}

  [[nodiscard]] bool is_lossless() const override { return codec_->is_lossless(); }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override {
    return codec_->max_payload_bytes(n);
  }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return codec_->fixed_payload_bytes(n);
  }
  [[nodiscard]] double contraction() const override { return codec_->contraction(); }
  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override {
    return codec_->encode(partial, residual, payload, context);
  }
  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    codec_->decode(payload, out);
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    codec_->decode_add(payload, out);
  }

 private:
  std::unique_ptr<Codec> codec_;
};

// Records what is dropped, per value of the bucket and over all encodes since forget(). Only for
// buckets that begin at the gradient's start.
class RecordingCodec final : public WrappedCodec {
 public:
  struct Records {
    std::vector<double> lost;   // v - decode(payload), v what was to be encoded
    std::vector<double> sizes;  // |v| + |decode(payload)|
    std::vector<int> encodes;   // how often the value was encoded
    // Whether an encode found a value of the segment that was not finite, and whether the last
    // encode did, so that it sent zeros.
    std::vector<bool> is_refused, is_zeroed;
  };

  RecordingCodec(const CodecSpec& spec, std::size_t elements)
      : WrappedCodec(spec), elements_(elements) {
    forget();
  }

  void forget() {
    records_ = {.lost = std::vector<double>(elements_),
                .sizes = std::vector<double>(elements_),
                .encodes = std::vector<int>(elements_),
                .is_refused = std::vector<bool>(elements_),
                .is_zeroed = std::vector<bool>(elements_)};
  }
  [[nodiscard]] const Records& records() const { return records_; }

  EncodeResult encode(std::span<const float> partial, float* residual, std::span<std::byte> payload,
                      const EncodeContext& context) const override {
    std::vector<float> v(partial.begin(), partial.end()), decoded(partial.size());
    if (residual != nullptr && !is_lossless()) {
      for (std::size_t i = 0; i < v.size(); ++i) v[i] += residual[i];
    }
    const EncodeResult result = WrappedCodec::encode(partial, residual, payload, context);
    decode(payload.first(result.payload_bytes), decoded);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::size_t at = context.offset + i;
      records_.is_zeroed[at] = !result.finite;
      if (!result.finite) {
        records_.is_refused[at] = true;
        continue;
      }
      const auto before = static_cast<double>(v[i]), after = static_cast<double>(decoded[i]);
      records_.lost[at] += before - after;
      records_.sizes[at] += std::abs(before) + std::abs(after);
      ++records_.encodes[at];
    }
    return result;
  }

 private:
  std::size_t elements_;
  mutable Records records_;
};

}  // namespace dp::testing_support
