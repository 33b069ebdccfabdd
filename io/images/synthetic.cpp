#include "io/images/synthetic.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

constexpr int kSide = static_cast<int>(kSyntheticShape.width);
static_assert(kSyntheticShape.height == kSyntheticShape.width);
constexpr std::size_t kImagePixels = kSyntheticShape.pixels(),
                      kImageBytes = kSyntheticShape.values();

enum class Motif { disc, ring, square, diamond, triangle, cross, flat, steep, checker, dots };

struct Point {
  float x, y;
};
struct Colour {
  float c[kColours];
};

// Draws consecutive values from one image's random function.
class Draws {
 public:
  explicit Draws(const CounterRng& rng) : rng_(rng) {}
  float range(float low, float high) {
    return low + (high - low) * static_cast<float>(rng_.uniform(next_++));
  }
  int below(int n) { return static_cast<int>(rng_.below(static_cast<std::uint64_t>(n), next_++)); }
  bool chance(float p) { return range(0, 1) < p; }
  Colour colour(float low, float high) {
    return {{range(low, high), range(low, high), range(low, high)}};
  }

 private:
  CounterRng rng_;
  std::uint64_t next_ = 0;
};

// A unit vector at an angle of about `degrees`. The sine is Bhaskara's rational approximation
// (error within 0.2 percent), because the last bit of the library's sine differs between systems.
// The error changes only the angle, because the vector is normalised to length 1.
Point direction(float degrees) {
  const auto sine = [](float d) {
    while (d < 0) d += 360;
    while (d >= 360) d -= 360;
    const float sign = d >= 180 ? -1.0f : 1.0f;
    if (d >= 180) d -= 180;
    const float q = d * (180 - d);
    return sign * 4 * q / (40500 - q);
  };
  const float x = sine(degrees + 90), y = sine(degrees), length = std::sqrt(x * x + y * y);
  return {x / length, y / length};
}

float triangle_wave(float t) {  // period 1, between -1 and 1
  t -= std::floor(t);
  return 4 * std::abs(t - 0.5f) - 1;
}

// Signed distance to a box of half sides a and b: negative inside, in pixels.
float box(Point p, float a, float b) { return std::max(std::abs(p.x) - a, std::abs(p.y) - b); }

// A motif with its place, size and angle.
struct Figure {
  Motif motif;
  Point centre;
  Point axis;       // the motif's own x axis
  float radius;     // of a shape, or of a texture's window, in pixels
  float thickness;  // ring: half the band; cross: half the bar
  float period;     // textures, in pixels
  float phase_x, phase_y;

  // The fraction of the pixel at (x, y) that the figure covers; edges are one pixel wide.
  [[nodiscard]] float coverage(float x, float y) const {
    const float dx = x - centre.x, dy = y - centre.y;
    const Point p{dx * axis.x + dy * axis.y, dy * axis.x - dx * axis.y};
    const float distance = std::sqrt(p.x * p.x + p.y * p.y);
    const auto edge = [](float d) { return std::clamp(0.5f - d, 0.0f, 1.0f); };
    const float u = p.x / period + phase_x, v = p.y / period + phase_y;
    const auto textured = [&](float wave) {
      // A triangle wave has a slope of 4 / period per pixel. Dividing by it keeps edges one pixel
      // wide.
      return edge(-wave * period / 4) * edge((distance - radius) / 3);
    };
    switch (motif) {
      case Motif::disc:
        return edge(distance - radius);
      case Motif::ring:
        return edge(std::abs(distance - radius + thickness) - thickness);
      case Motif::square:
      case Motif::diamond:
        return edge(box(p, 0.84f * radius, 0.84f * radius));
      case Motif::triangle: {
        const float side = std::max(0.8660254f * std::abs(p.x) + 0.5f * p.y, -p.y);
        return edge(side - 0.6f * radius);
      }
      case Motif::cross:
        return edge(std::min(box(p, radius, thickness), box(p, thickness, radius)));
      case Motif::flat:
      case Motif::steep:
        return textured(triangle_wave(v));
      case Motif::checker:
        return textured(triangle_wave(u) * triangle_wave(v) > 0 ? 0.5f : -0.5f);
      case Motif::dots: {
        const float a = u - std::floor(u) - 0.5f, b = v - std::floor(v) - 0.5f;
        return edge((std::sqrt(a * a + b * b) - 0.33f) * period) * edge((distance - radius) / 3);
      }
    }
    return 0;
  }
};

// Draws an angle. Classes that differ only by the angle have a gap between their angles.
float draw_angle(Motif motif, Draws& draw) {
  const float sign = draw.chance(0.5f) ? 1.0f : -1.0f;
  switch (motif) {
    case Motif::square:
      return draw.range(-17, 17);
    case Motif::diamond:
      return 45 + draw.range(-17, 17);
    case Motif::cross:
      return draw.range(-45, 45);
    case Motif::flat:
      return sign * draw.range(0, 38);
    case Motif::steep:
      return sign * draw.range(52, 90);
    default:
      return draw.range(0, 360);
  }
}

Figure draw_figure(Motif motif, Draws& draw) {
  const bool is_texture = motif >= Motif::flat;
  Figure figure{};
  figure.motif = motif;
  figure.axis = direction(draw_angle(motif, draw));
  figure.radius = is_texture ? draw.range(9, 17) : draw.range(6, 12);
  figure.centre = {draw.range(11, 20), draw.range(11, 20)};
  figure.thickness = motif == Motif::ring ? figure.radius * draw.range(0.18f, 0.36f)
                                          : figure.radius * draw.range(0.2f, 0.38f);
  figure.period =
      motif == Motif::dots || motif == Motif::checker ? draw.range(5, 10) : draw.range(3.5f, 9);
  figure.phase_x = draw.range(0, 1);
  figure.phase_y = draw.range(0, 1);
  return figure;
}

using Canvas = std::array<float, kImageBytes>;

void paint_ground(Canvas& canvas, const Colour& ground, Draws& draw) {
  const Point slope_axis = direction(draw.range(0, 360));
  const Colour slope = draw.colour(-1.2f, 1.2f);  // brightness per pixel
  for (std::size_t c = 0; c < kColours; ++c) {
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const float along = slope_axis.x * (static_cast<float>(x) - 15.5f) +
                            slope_axis.y * (static_cast<float>(y) - 15.5f);
        canvas[c * kImagePixels + static_cast<std::size_t>(y * kSide + x)] =
            ground.c[c] + slope.c[c] * along;
      }
    }
  }
}

void paint_figure(Canvas& canvas, const Figure& figure, const Colour& change) {
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const float coverage = figure.coverage(static_cast<float>(x), static_cast<float>(y));
      if (coverage <= 0) continue;
      for (std::size_t c = 0; c < kColours; ++c) {
        canvas[c * kImagePixels + static_cast<std::size_t>(y * kSide + x)] +=
            change.c[c] * coverage;
      }
    }
  }
}

// A filled rectangle that hides what is under it.
void paint_patch(Canvas& canvas, Draws& draw) {
  const int width = 3 + draw.below(8), height = 3 + draw.below(8);
  const int left = draw.below(kSide + width) - width, top = draw.below(kSide + height) - height;
  const Colour colour = draw.colour(20, 235);
  for (std::size_t c = 0; c < kColours; ++c) {
    for (int y = std::max(top, 0); y < std::min(top + height, kSide); ++y) {
      for (int x = std::max(left, 0); x < std::min(left + width, kSide); ++x) {
        canvas[c * kImagePixels + static_cast<std::size_t>(y * kSide + x)] = colour.c[c];
      }
    }
  }
}

// Adds nearly normal noise and rounds to bytes. The noise of a value is the sum of four random
// bytes, which has mean 510 and standard deviation 147.8. One draw of 64 bits thus gives the noise
// of two values.
void develop(const Canvas& canvas, float noise, const CounterRng& rng,
             std::span<std::uint8_t> pixels) {
  const float scale = noise / 147.8f;
  const auto byte_sum = [](std::uint64_t bits) {
    constexpr std::uint64_t kMask = 0x00FF00FF;
    const std::uint64_t pairs = (bits & kMask) + ((bits >> 8) & kMask);
    return static_cast<float>(static_cast<std::int32_t>((pairs & 0xFFFF) + (pairs >> 16))) - 510.0f;
  };
  const auto to_byte = [](float value) {
    return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f) + 0.5f);
  };
  for (std::size_t i = 0; i < kImageBytes; i += 2) {
    const std::uint64_t bits = rng.bits(i);
    pixels[i] = to_byte(canvas[i] + scale * byte_sum(bits & 0xFFFFFFFFu));
    pixels[i + 1] = to_byte(canvas[i + 1] + scale * byte_sum(bits >> 32));
  }
}

}  // namespace

std::vector<std::string> synthetic_class_names() {
  return {"disc",  "ring",         "square",        "diamond", "triangle",
          "cross", "flat stripes", "steep stripes", "checker", "dots"};
}

std::int32_t draw_synthetic(std::uint64_t seed, Split split, std::size_t index,
                            std::span<std::uint8_t> pixels) {
  DP_ASSERT(pixels.size() == kImageBytes, "{} bytes for an image", pixels.size());
  const auto label = static_cast<std::int32_t>(index % kSyntheticClasses);
  const CounterRng rng(seed, RandomStream::synthetic_image, static_cast<std::uint64_t>(split),
                       index);
  Draws draw(CounterRng(rng.bits(0), RandomStream::synthetic_image));

  Canvas canvas;
  const Colour ground = draw.colour(30, 150);
  paint_ground(canvas, ground, draw);

  // The figure's colour is the ground's colour plus a change. The change has a random direction,
  // more often towards brighter colours, and a random size, so some figures are faint.
  Colour change = draw.colour(-0.4f, 1);
  const float length =
      std::sqrt(change.c[0] * change.c[0] + change.c[1] * change.c[1] + change.c[2] * change.c[2]) +
      1e-3f;
  const float contrast = draw.range(30, 170);
  for (float& c : change.c) c *= contrast / length;

  const int patches = draw.below(4);
  const int before = draw.below(patches + 1);  // patches behind the figure
  for (int i = 0; i < before; ++i) paint_patch(canvas, draw);
  paint_figure(canvas, draw_figure(static_cast<Motif>(label), draw), change);
  for (int i = before; i < patches; ++i) paint_patch(canvas, draw);

  const float noise = draw.range(6, 32);
  develop(canvas, noise, CounterRng(rng.bits(1), RandomStream::synthetic_image), pixels);
  return label;
}

ImageSet make_synthetic(Split split, std::size_t count, std::uint64_t seed, std::size_t threads,
                        const Normalization& normalization) {
  std::vector<std::uint8_t> pixels(count * kImageBytes);
  std::vector<std::int32_t> labels(count);
  const auto draw_part = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      labels[i] =
          draw_synthetic(seed, split, i, std::span(pixels).subspan(i * kImageBytes, kImageBytes));
    }
  };
  const std::size_t parts = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(count, 1));
  {
    std::vector<std::jthread> workers;
    for (std::size_t part = 1; part < parts; ++part) {
      workers.emplace_back(draw_part, count * part / parts, count * (part + 1) / parts);
    }
    draw_part(0, count / parts);
  }
  return {{.name = split == Split::train ? "synthetic train" : "synthetic test",
           .class_names = synthetic_class_names(),
           .shape = kSyntheticShape,
           .normalization = normalization},
          std::move(pixels),
          std::move(labels)};
}

Dataset load_synthetic(const DatasetRequest& request) {
  const auto make = [&](Split split, std::size_t limit, std::size_t usual) {
    return std::make_unique<const ImageSet>(make_synthetic(split, limit != 0 ? limit : usual,
                                                           request.seed, request.threads,
                                                           request.normalization({})));
  };
  return {.train = make(Split::train, request.limit_train, kSyntheticTrain),
          .test = make(Split::test, request.limit_test, kSyntheticTest),
          .warnings = {}};
}

}  // namespace dp
