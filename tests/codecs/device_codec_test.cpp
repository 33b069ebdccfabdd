// Every codec on a device's memory gives the CPU's payloads, values and residuals, bit for bit: all
// sizes and alignments, values that are awkward, input that is not finite. On a CPU the two are the
// same code; the program is for GPUs.
#include <numeric>
#include <set>

#include "tests/codecs/codec_testing.hpp"
#include "tests/codecs/device_memory.hpp"
#include "tests/support/test_device.hpp"

namespace dp {
namespace {

using namespace test;
using testing_support::first_difference;
using Floats = testing_support::DeviceArray<float>;
using Bytes = testing_support::DeviceArray<std::byte>;

// In blocks of which one takes a warp, or all threads; and of any length.
constexpr std::size_t kBlocks[] = {kMinBlock, 72, 520, kMaxBlock};
std::vector<std::string> device_specs() {
  return codec_specs_where(
      [](const Codec& codec) {
        // The codec does not know of feedback: it is given a residual or none.
        return has_codec(codec.spec(), DeviceKind::cuda) &&
               codec.spec().feedback == codec.spec().is_biased();
      },
      kBlocks);
}
// In a step of its own: what rounds at random depends on the place.
constexpr EncodeContext kContext{.seed = 3, .step = 17, .bucket = 2, .rank = 1, .offset = 4096};
constexpr std::size_t kSizes[] = {0,  1,   2,   3,    4,    5,    7,    63,   64,
                                  65, 127, 255, 1000, 2047, 2048, 2049, 4103, 20'011};

class DeviceCodec : public testing::TestWithParam<std::string> {
 protected:
  // How the arrays of a case lie.
  struct Layout {
    std::size_t floats = 0;   // bytes behind a multiple of 64
    std::size_t payload = 0;  // likewise
    Bytes::Place place = Bytes::Place::host;
  };

  void SetUp() override {
    device_ = make_test_device();
    on_device_ = make_codec(parse_codec_spec(GetParam()), *device_);
    ASSERT_NE(on_device_, nullptr);
    EXPECT_EQ(on_device_->is_on_device(), device_->kind() == DeviceKind::cuda);
    EXPECT_TRUE(has_codec(on_device_->spec(), device_->kind()));
  }

  static void expect_same(std::span<const float> got, std::span<const float> want,
                          const char* what) {
    ASSERT_EQ(got.size(), want.size());
    const std::size_t at = first_difference(got, want);
    if (at < got.size()) {
      ADD_FAILURE() << what << " " << at << " of " << got.size() << " is " << got[at] << ", not "
                    << want[at];
    }
  }

  // The rest of the memory is used only while the payload is encoded.
  static void expect_same_bytes(const std::vector<std::byte>& got,
                                const std::vector<std::byte>& want, std::size_t count,
                                const char* what) {
    EXPECT_TRUE(
        std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count), want.begin()))
        << what;
  }

  // encode, decode, decode_add and decode_add_encode of one segment against the CPU's; for codecs
  // that take a step, also with steps that are set and with dense payloads.
  void compare(const std::vector<float>& partial, const std::vector<float>* residual,
               Layout layout) {
    compare_in(kContext, partial, residual, layout);
    if (!cpu_->takes_step()) return;
    for (const float step : {0.003f, 0.4f, 3.0f}) {
      SCOPED_TRACE(testing::Message() << "a step of " << step);
      EncodeContext context = kContext;
      context.quantiser_step = step;
      compare_in(context, partial, residual, layout);
    }
    for (const unsigned bits : {4u, 8u, 16u, 32u}) {
      SCOPED_TRACE(testing::Message() << bits << " dense bits");
      EncodeContext context = kContext;
      context.dense_bits = bits;
      compare_in(context, partial, residual, layout);
    }
  }

  void compare_in(const EncodeContext& context, const std::vector<float>& partial,
                  const std::vector<float>* residual, Layout layout) {
    const std::size_t n = partial.size(), most = cpu_->max_payload_bytes(n);
    ASSERT_EQ(on_device_->max_payload_bytes(n), most);
    std::vector<std::byte> payload(most);
    std::vector<float> rest = residual == nullptr ? std::vector<float>() : *residual;

    Floats d_partial(*device_, partial, layout.floats), d_rest(*device_, rest, layout.floats);
    const EncodeResult want =
        cpu_->encode(partial, residual == nullptr ? nullptr : rest.data(), payload, context);
    Bytes d_payload(*device_, most, layout.payload, layout.place);
    float* d_residual = residual == nullptr ? nullptr : d_rest.data();
    EncodeResult got = on_device_->encode(d_partial.span(), d_residual, d_payload.span(), context);
    EXPECT_EQ(got.finite, want.finite);
    ASSERT_EQ(got.payload_bytes, want.payload_bytes);
    expect_same_bytes(d_payload.get(), payload, want.payload_bytes, "payload");
    const std::span written = std::span(payload).first(want.payload_bytes);
    const std::span d_written = d_payload.span().first(want.payload_bytes);
    expect_same(d_rest.get(), rest, "residual");
    expect_same(d_partial.get(), partial, "input");

    std::vector<float> out(n, std::numeric_limits<float>::quiet_NaN());
    Floats d_out(*device_, out, layout.floats);
    cpu_->decode(written, out);
    on_device_->decode(d_written, d_out.span());
    expect_same(d_out.get(), out, "decoded");

    std::vector<float> sum = normals(n, 77);
    Floats d_sum(*device_, sum, layout.floats);
    cpu_->decode_add(written, sum);
    on_device_->decode_add(d_written, d_sum.span());
    expect_same(d_sum.get(), sum, "sum");

    // As on a hop of the ring: what was encoded is received by a rank with the same values.
    std::vector<float> second = partial;
    std::vector<std::byte> onward(most);
    const EncodeResult passed = cpu_->decode_add_encode(
        written, second, residual == nullptr ? nullptr : rest.data(), onward, context);
    Bytes d_onward(*device_, most, layout.payload, layout.place);
    got = on_device_->decode_add_encode(d_written, d_partial.span(), d_residual, d_onward.span(),
                                        context);
    EXPECT_EQ(got.finite, passed.finite);
    ASSERT_EQ(got.payload_bytes, passed.payload_bytes);
    expect_same_bytes(d_onward.get(), onward, passed.payload_bytes, "payload that is passed on");
    expect_same_bytes(d_payload.get(), payload, want.payload_bytes, "payload that was received");
    expect_same(d_partial.get(), second, "passed on");
    expect_same(d_rest.get(), rest, "residual of what is passed on");
  }

  TestDevice device_;
  std::unique_ptr<Codec> on_device_;
  std::unique_ptr<Codec> cpu_ = make_codec(parse_codec_spec(GetParam()));
};

TEST_P(DeviceCodec, AllSizes) {
  for (const std::size_t n : kSizes) {
    SCOPED_TRACE(n);
    const auto partial = normals(n, n, 1e-3), residual = normals(n, n + 1, 1e-4);
    compare(partial, &residual, {});
    compare(partial, nullptr, {});
    if (HasFailure()) return;
  }
}

TEST_P(DeviceCodec, AllAlignments) {
  for (const std::size_t n : {std::size_t{37}, std::size_t{4103}}) {
    const auto partial = normals(n, 3), residual = normals(n, 4, 0.01);
    for (const std::size_t floats : {0, 4, 8, 12}) {
      for (const std::size_t payload : {0, 1, 2, 4, 8, 16}) {
        SCOPED_TRACE(testing::Message() << n << ", " << floats << ", " << payload);
        compare(partial, &residual, {.floats = floats, .payload = payload});
        if (HasFailure()) return;
      }
    }
    // The host entropy-codes ecq's payloads, so they are host memory.
    if (!cpu_->takes_step()) compare(partial, &residual, {.place = Bytes::Place::device});
  }
}

TEST_P(DeviceCodec, AwkwardValues) {
  const std::size_t n = 4103;
  const auto compare_all = [&](float value) {
    SCOPED_TRACE(value);
    const std::vector<float> same(n, value), zeros(n, -0.0f), rest = normals(n, 5, 1e-3);
    compare(same, &zeros, {});
    compare(same, &rest, {});
  };
  for (const float value : {0.0f, -0.0f, 1e-45f, -1e-41f, 0x1p-126f, 0x1p-100f, 0x1.fffffep-101f,
                            6e-8f, 65504.0f, 65520.0f, 1e30f, 0x1.fffffep125f, -0x1.fffffep125f}) {
    compare_all(value);
  }
  // All magnitudes in one segment, ties between codes among them.
  auto wild = normals(n, 6);
  for (std::size_t i = 0; i < n; ++i) wild[i] *= std::ldexp(1.0f, static_cast<int>(i % 120) - 60);
  const std::vector<float> rest = normals(n, 7);
  compare(wild, &rest, {});
  std::vector<float> ties(n);
  for (std::size_t i = 0; i < n; ++i) ties[i] = static_cast<float>(i % 255) / 2.0f - 63.5f;
  const std::vector<float> none(n, 0.0f);
  compare(ties, &none, {});
}

TEST_P(DeviceCodec, InputThatIsNotFinite) {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(),  -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::max(),       0x1p126f};
  for (const std::size_t n : {std::size_t{1}, std::size_t{9}, std::size_t{5000}}) {
    const auto residual = normals(n, 8);
    for (const float value : bad) {
      for (const std::size_t at : std::set<std::size_t>{0, n / 2, n - 1}) {
        SCOPED_TRACE(testing::Message() << value << " at " << at << " of " << n);
        auto partial = normals(n, 9);
        partial[at] = value;
        compare(partial, &residual, {});
        compare(partial, nullptr, {});
        if (HasFailure()) return;
      }
      // What was not finite is forgotten with the next segment.
      compare(normals(n, 10), &residual, {});
    }
  }
  // A sum that overflows though both parts are finite.
  const std::vector<float> huge(10, std::numeric_limits<float>::max());
  compare(huge, &huge, {});
}

// Small blocks have the most maxima.
class DeviceCodecOfSmallBlocks : public DeviceCodec {};

TEST_P(DeviceCodecOfSmallBlocks, SegmentsMayGrow) {
  // More blocks than a codec reckons with at first.
  const std::size_t n = 16385 * 64 + 3;
  const auto partial = normals(n, 11), residual = normals(n, 12, 0.01);
  compare(std::vector<float>(100, 1.0f), nullptr, {});
  compare(partial, &residual, {});
}

TEST_P(DeviceCodec, PayloadsThatCannotBeThrow) {
  const std::size_t n = 5000;
  auto payload = std::vector<std::byte>(cpu_->max_payload_bytes(n));
  ASSERT_TRUE(cpu_->encode(normals(n, 13), nullptr, payload, kContext).finite);
  Floats out(*device_, n);
  Bytes onward(*device_, payload.size(), 0, Bytes::Place::host);
  const auto expect_throw = [&](std::size_t bytes) {
    const Bytes d_payload(*device_, payload, 0, Bytes::Place::host);
    const std::span<const std::byte> part = d_payload.span().first(bytes);
    try {
      on_device_->decode(part, out.span());
      ADD_FAILURE() << "decoded " << bytes << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::communication);
    }
    EXPECT_THROW(on_device_->decode_add(part, out.span()), Error);
    EXPECT_THROW(static_cast<void>(on_device_->decode_add_encode(part, out.span(), nullptr,
                                                                 onward.span(), kContext)),
                 Error);
  };
  expect_throw(payload.size() - 1);
  expect_throw(0);
  std::fill(payload.begin(), payload.end(), std::byte{0xFF});
  expect_throw(payload.size());
  // The codec goes on to work.
  compare(normals(n, 14), nullptr, {});
}

// The device says the same of damaged payloads as the CPU: codes, heads and padding that cannot be
// are refused, and what is let through is decoded to the same values.
TEST_P(DeviceCodec, DamagedPayloadsAreJudgedAlike) {
  const std::size_t n = 37;
  auto payload = std::vector<std::byte>(cpu_->max_payload_bytes(n));
  ASSERT_TRUE(cpu_->encode(normals(n, 15), nullptr, payload, kContext).finite);
  const auto is_taken = [](auto decode) {
    try {
      decode();
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::communication);
      return false;
    }
  };
  Bytes d_payload(*device_, payload, 0, Bytes::Place::host);
  Bytes d_onward(*device_, payload.size(), 0, Bytes::Place::host);
  Floats d_out(*device_, n);
  for (std::size_t at = 0; at < payload.size(); ++at) {
    for (const unsigned change : {0x01u, 0x80u, 0xF0u, 0xFFu}) {
      SCOPED_TRACE(testing::Message() << "byte " << at << " changed by " << change);
      auto damaged = payload;
      damaged[at] ^= static_cast<std::byte>(change);
      d_payload.set(damaged);
      std::vector<float> out(n);
      d_out.set(out);
      const bool want = is_taken([&] { cpu_->decode_add(damaged, out); });
      ASSERT_EQ(is_taken([&] { on_device_->decode_add(d_payload.span(), d_out.span()); }), want);
      if (want) expect_same(d_out.get(), out, "decoded");
      const bool is_passed_on = is_taken([&] {
        static_cast<void>(on_device_->decode_add_encode(d_payload.span(), d_out.span(), nullptr,
                                                        d_onward.span(), kContext));
      });
      ASSERT_EQ(is_passed_on, want);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodec, testing::ValuesIn(device_specs()), codec_test_name);
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodecOfSmallBlocks,
                         testing::Values("q8:block=64", "q4:block=64", "ecq"), codec_test_name);

// A model has dozens of buckets: a stream for each would take the GPU's own queues from backward.
TEST(DeviceCodecQueue, IsOneForAllCodecsOfADevice) {
  if (!on_gpu()) GTEST_SKIP() << "codecs of a CPU have no queue";
  const auto device = make_test_device(), other = make_test_device();
  const auto none = make_codec(parse_codec_spec("none"), *device);
  auto q8 = make_codec(parse_codec_spec("q8"), *device);
  EXPECT_EQ(&q8->memory(), &none->memory());
  EXPECT_NE(&make_codec(parse_codec_spec("q8"), *other)->memory(), &none->memory());
  // As when a warm-up ends: codecs go and others come.
  q8.reset();
  const auto q4 = make_codec(parse_codec_spec("q4"), *device);
  EXPECT_EQ(&q4->memory(), &none->memory());
}

// ---- the sums beside the codecs -----------------------------------------------------------------

void expect_same_bits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size_bytes()), 0);
}

TEST(SegmentMemory, SumsAreThoseOfTheHost) {
  const auto device = make_test_device();
  const auto codec = make_codec(parse_codec_spec("q8"), *device);
  const SegmentMemory& memory = codec->memory();
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{200'001}}) {
    const auto a = normals(n, 20), b = normals(n, 21);
    const Floats d_a(*device, a, 4), d_b(*device, b, 8);
    EXPECT_EQ(memory.squares_of_sum(d_a.data(), nullptr, n),
              host_memory().squares_of_sum(a.data(), nullptr, n));
    EXPECT_EQ(memory.squares_of_sum(d_a.data(), d_b.data(), n),
              host_memory().squares_of_sum(a.data(), b.data(), n));
    EXPECT_EQ(memory.squares_of_difference(d_a.data(), d_b.data(), n),
              host_memory().squares_of_difference(a.data(), b.data(), n));
    EXPECT_EQ(memory.squares_of_sum(d_a.data(), d_b.data(), n),
              memory.squares_of_sum(d_a.data(), d_b.data(), n));
    auto sum = b;
    host_memory().add(a.data(), sum.data(), n);
    memory.add(d_a.data(), d_b.data(), n);
    EXPECT_EQ(d_b.get(), sum);
    EXPECT_EQ(d_a.get(), a);
    host_memory().scale(0.3f, sum.data(), n);
    memory.scale(0.3f, d_b.data(), n);
    EXPECT_EQ(d_b.get(), sum);
    EXPECT_TRUE(n == 0 || sum[n - 1] == 0.3f * (a[n - 1] + b[n - 1]));
  }
}

TEST(SegmentMemory, SamplesAndCountsAreThoseOfTheHost) {
  const auto device = make_test_device();
  const auto codec = make_codec(parse_codec_spec("q8"), *device);
  const SegmentMemory& memory = codec->memory();
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{1000},
                              std::size_t{4103}, std::size_t{200'001}}) {
    SCOPED_TRACE(n);
    auto a = awkward(n, 22), b = normals(n, 23, 1e-3);
    for (std::size_t i = 0; i < n; i += 97) {
      a[i] = std::numeric_limits<float>::quiet_NaN();
      b[i / 2] = -std::numeric_limits<float>::infinity();
    }
    const Floats d_a(*device, a, 4), d_b(*device, b, 8);
    for (const bool is_sum : {true, false}) {
      const float* const others = is_sum ? b.data() : nullptr;
      const float* const d_others = is_sum ? d_b.data() : nullptr;
      using Counts = std::vector<std::int64_t>;
      Counts counts(SegmentMemory::kMagnitudes, 3), got = counts;
      const auto all = [](Counts& of) {
        return std::span<std::int64_t, SegmentMemory::kMagnitudes>(of);
      };
      host_memory().count_magnitudes(a.data(), others, n, all(counts));
      memory.count_magnitudes(d_a.data(), d_others, n, all(got));
      EXPECT_EQ(got, counts);
      for (const std::size_t stride : {std::size_t{256}, std::size_t{300}, std::size_t{5000}}) {
        std::vector<float> sample(n + 256, 7.0f), d_sample = sample;
        const std::size_t count =
            host_memory().sample(a.data(), others, n, 256, stride, sample.data());
        EXPECT_EQ(memory.sample(d_a.data(), d_others, n, 256, stride, d_sample.data()), count);
        expect_same_bits(d_sample, sample);
      }
    }
    host_memory().fill(0.25f, b.data(), n / 2);
    memory.fill(0.25f, d_b.data(), n / 2);
    expect_same_bits(d_b.get(), b);
  }
}

TEST(SegmentMemory, MomentumIsThatOfTheHost) {
  const auto device = make_test_device();
  const auto codec = make_codec(parse_codec_spec("q8"), *device);
  const SegmentMemory& memory = codec->memory();
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096},
                              std::size_t{40'007}}) {
    for (const bool is_finite : {true, false}) {
      SCOPED_TRACE(testing::Message() << n << ", " << is_finite);
      auto gradient = normals(n, 24), velocity = normals(n, 25);
      if (!is_finite && n > 0) gradient[n - 1] = -std::numeric_limits<float>::infinity();
      if (!is_finite && n > 5000) gradient[4096] = std::numeric_limits<float>::quiet_NaN();
      const Floats d_gradient(*device, gradient, 4), d_velocity(*device, velocity, 8);
      const auto before = velocity;
      const SegmentMemory::Momentum factors = {
          .momentum = 0.9f, .scale = 0.7f, .given = 0.9f, .direct = 0.7f};
      host_memory().add_momentum(factors, gradient.data(), velocity.data(), n);
      memory.add_momentum(factors, d_gradient.data(), d_velocity.data(), n);
      expect_same_bits(d_gradient.get(), gradient);
      expect_same_bits(d_velocity.get(), velocity);
      if (n > 0) {
        EXPECT_EQ(velocity[n - 1] == before[n - 1], !is_finite);
      }

      // Single values, runs of zeros of both signs, and NaN.
      auto at = normals(n, 26);
      for (std::size_t i = 0; i < n; ++i) {
        if (i % 200 > 3) at[i] = i % 2 == 0 ? 0.0f : -0.0f;
      }
      if (n > 0) at[n / 2] = std::numeric_limits<float>::quiet_NaN();
      const Floats d_at(*device, at, 12);
      for (const auto where : {SegmentMemory::Where::zero, SegmentMemory::Where::not_zero}) {
        auto values = normals(n, 27);
        const Floats d_values(*device, values, 4);
        host_memory().clear(where, at.data(), values.data(), n);
        memory.clear(where, d_at.data(), d_values.data(), n);
        expect_same_bits(d_values.get(), values);
        for (std::size_t i = 0; i < n; ++i) {
          const bool is_zero = at[i] == 0.0f, is_cleared = values[i] == 0.0f;
          ASSERT_EQ(is_cleared, is_zero == (where == SegmentMemory::Where::zero)) << i;
        }
      }
    }
  }
}

// The run at every multiple of the stride; the last one may be shorter.
TEST(SegmentMemory, SamplesAreRuns) {
  std::vector<float> values(1000), sample(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  EXPECT_EQ(host_memory().sample(values.data(), values.data(), 905, 10, 300, sample.data()), 35u);
  for (std::size_t i = 0; i < 35; ++i) {
    EXPECT_EQ(sample[i], 2.0f * static_cast<float>(i / 10 * 300 + i % 10)) << i;
  }
}

TEST(SegmentMemory, FindsWhatIsNotFinite) {
  const auto device = make_test_device();
  const auto codec = make_codec(parse_codec_spec("none"), *device);
  const std::size_t n = 3001;
  Floats values(*device, std::vector<float>(n, std::numeric_limits<float>::max()));
  EXPECT_TRUE(codec->memory().is_finite(values.data(), n));
  EXPECT_TRUE(codec->memory().is_finite(values.data(), 0));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, n - 1}) {
      std::vector<float> v(n, -1.0f);
      v[at] = bad;
      values.set(v);
      EXPECT_FALSE(codec->memory().is_finite(values.data(), n)) << bad << " at " << at;
      EXPECT_TRUE(codec->memory().is_finite(values.data() + 1, n - 2));
    }
  }
}

TEST(SegmentMemory, NewMemoryIsZeros) {
  const auto device = make_test_device();
  const auto codec = make_codec(parse_codec_spec("fp16"), *device);
  const auto memory = codec->memory().allocate(1000);
  std::vector<float> values(1000, 1.0f);
  device->download(values.data(), memory.get(), values.size() * sizeof(float));
  EXPECT_EQ(values, std::vector<float>(1000, 0.0f));
}

}  // namespace
}  // namespace dp
