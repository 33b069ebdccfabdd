// The text of --compress: what it gives, and the exact message for each thing that it cannot be.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

TEST(CodecSpec, DefaultsAndKeys) {
  EXPECT_EQ(parse_codec_spec("none"), (CodecSpec{"none", 1, false, {}}));
  EXPECT_EQ(parse_codec_spec("fp16"), (CodecSpec{"fp16", 1, true, {}}));
  EXPECT_EQ(parse_codec_spec("q8"), (CodecSpec{"q8", 2048, true, {{"round", 0.0}}}));
  EXPECT_EQ(parse_codec_spec("q4:block=256,ef=off"),
            (CodecSpec{"q4", 256, false, {{"round", 0.0}}}));
  EXPECT_EQ(parse_codec_spec("q16:ef=off,block=64"),
            (CodecSpec{"q16", 64, false, {{"round", 0.0}}}));
  EXPECT_EQ(parse_codec_spec("q8:round=stochastic"),
            (CodecSpec{"q8", 2048, false, {{"round", 1.0}}}));
  EXPECT_EQ(parse_codec_spec("q4n"), (CodecSpec{"q4n", 2048, true, {}}));
}

TEST(CodecSpec, TextRoundTrips) {
  for (const char* text : {"none", "fp16:ef=off", "q8", "q4:block=256", "q16:ef=off",
                           "q8:round=stochastic", "q8:round=stochastic,ef=force"}) {
    const CodecSpec spec = parse_codec_spec(text);
    EXPECT_EQ(parse_codec_spec(spec.text()), spec) << text;
  }
  EXPECT_EQ(parse_codec_spec("q8").text(), "q8:block=2048,round=nearest,ef=on");
  EXPECT_EQ(parse_codec_spec("fp16").text(), "fp16:ef=on");
  EXPECT_EQ(parse_codec_spec("none").text(), "none");
  EXPECT_EQ(parse_codec_spec("sign:block=64").text(), "sign:block=64,ef=on");
}

// Rounding at random is unbiased and goes without feedback, unless it is asked for by its name.
TEST(CodecSpec, FeedbackOfUnbiasedSpecsMustBeForced) {
  for (const CodecInfo& info : codec_list()) {
    if (info.unbiased_when.empty()) continue;
    const std::string unbiased = fmt::format("{}:{}", info.name, info.unbiased_when);
    EXPECT_FALSE(parse_codec_spec(unbiased).is_biased());
    EXPECT_FALSE(parse_codec_spec(unbiased).feedback);
    EXPECT_FALSE(parse_codec_spec(unbiased + ",ef=off").feedback);
    EXPECT_THROW((void)parse_codec_spec(unbiased + ",ef=on"), Error) << unbiased;
    const CodecSpec forced = parse_codec_spec(unbiased + ",ef=force");
    EXPECT_TRUE(forced.feedback);
    EXPECT_EQ(parse_codec_spec(forced.text()), forced) << forced.text();
    EXPECT_TRUE(parse_codec_spec(info.name).is_biased());
  }
  // The order of the keys does not matter, and where nothing has to be forced it is the same as on.
  EXPECT_THROW((void)parse_codec_spec("q8:ef=on,round=stochastic"), Error);
  EXPECT_EQ(parse_codec_spec("q8:ef=force"), parse_codec_spec("q8:ef=on"));
}

TEST(CodecSpec, ListIsCompleteAndEveryRowCanBeMade) {
  std::set<std::string_view> names;
  for (const CodecInfo& info : codec_list()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.help.empty());
    const CodecSpec spec = parse_codec_spec(info.name);
    const auto codec = make_codec(spec);
    ASSERT_EQ(codec == nullptr, info.is_exchange) << info.name;
    EXPECT_EQ(has_codec(spec, DeviceKind::cpu), !info.is_exchange);
    if (codec != nullptr) {
      EXPECT_EQ(codec->spec(), spec);
    }
    // Rounding that does not average out needs its error fed back.
    EXPECT_EQ(spec.feedback, spec.is_biased()) << info.name;
  }
  EXPECT_GE(names.size(), 5u);
}

// Every key of every codec, from the table: each end of its range and each choice is taken and
// comes back from the canonical form; what lies beyond is refused.
TEST(CodecSpec, EveryKeyKeepsItsRange) {
  const auto spec_of = [](const CodecInfo& info, const CodecParameter& parameter,
                          const std::string& value) {
    return fmt::format("{}:{}={}", info.name, parameter.key, value);
  };
  for (const CodecInfo& info : codec_list()) {
    const std::string canonical = parse_codec_spec(info.name).text();
    for (const CodecParameter& parameter : info.parameters) {
      EXPECT_FALSE(parameter.help.empty()) << info.name << " " << parameter.key;
      EXPECT_NE(canonical.find(fmt::format("{}=", parameter.key)), std::string::npos) << canonical;
      std::vector<std::string> good, bad = {"", " ", "x", "nan", "1x", "+1"};
      if (parameter.kind == CodecParameter::Kind::choice) {
        std::string choice;
        std::istringstream choices{std::string(parameter.choices)};
        while (std::getline(choices, choice, '|')) good.push_back(choice);
        bad.push_back(std::string(parameter.choices));
      } else {
        EXPECT_GE(parameter.preset, parameter.least);
        EXPECT_LE(parameter.preset, parameter.most);
        good = {fmt::format("{}", parameter.preset), fmt::format("{}", parameter.most)};
        (parameter.is_above_least ? bad : good).push_back(fmt::format("{}", parameter.least));
        bad.push_back(fmt::format("{}", 2.0 * std::abs(parameter.most) + 1.0));
        bad.push_back(fmt::format("{}", parameter.least - 1.0));
        bad.push_back("inf");
        if (parameter.kind == CodecParameter::Kind::whole) {
          bad.push_back(fmt::format("{}", parameter.preset + 0.5));
          bad.push_back(fmt::format("{}.0", parameter.preset));
        }
      }
      for (const std::string& value : good) {
        const CodecSpec spec = parse_codec_spec(spec_of(info, parameter, value));
        EXPECT_EQ(parse_codec_spec(spec.text()), spec) << spec.text();
        // What is on anyway needs no force.
        const std::string written = value == "force" && spec.is_biased() ? "on" : value;
        EXPECT_NE(spec.text().find(fmt::format("{}={}", parameter.key, written)), std::string::npos)
            << spec.text() << " " << value;
      }
      for (const std::string& value : bad) {
        EXPECT_THROW((void)parse_codec_spec(spec_of(info, parameter, value)), Error)
            << spec_of(info, parameter, value);
      }
    }
  }
}

TEST(CodecSpec, HelpNamesEveryCodecAndEveryKeyOnce) {
  const HelpEntries codecs = codec_help(), keys = codec_key_help();
  ASSERT_EQ(codecs.size(), codec_list().size());
  // Its size with all that is sent, at the keys' presets; nothing where there is no such bound.
  const std::map<std::string, std::string> help(codecs.begin(), codecs.end());
  EXPECT_EQ(codecs[0].first, "none");
  EXPECT_EQ(help.at("none"), "fp32 as it is; 32 bits a value");
  EXPECT_EQ(help.at("q4"),
            "4-bit linear bins, one scale per block; 4 bits a value; "
            "block=2048, round=nearest, ef=on");
  EXPECT_EQ(
      help.at("ternary"),
      "as q2, but five values share a byte; 1.6 bits a value; block=2048, round=nearest, ef=on");
  EXPECT_EQ(help.at("sign"),
            "signs and a mean magnitude per block; 1 bit a value; block=2048, ef=on");
  EXPECT_EQ(help.at("topk"),
            "a segment's values of largest magnitude, with their places; up to 0.41 bits a value; "
            "ratio=0.01, value=fp32, ef=on");
  EXPECT_EQ(help.at("threshold"),
            "values above a magnitude; the rest accumulates in the residual; alpha=0.001, "
            "value=fp32, ef=on");
  EXPECT_EQ(help.at("powersgd"),
            "matrices as two factors of low rank, summed in fp32; rank=4, ef=on");
  // A key means the same for every codec that has it.
  std::set<std::string> names;
  for (const auto& [key, text] : keys) EXPECT_TRUE(names.insert(key).second) << key << ": " << text;
  for (const CodecInfo& info : codec_list()) {
    for (const CodecParameter& parameter : info.parameters) {
      EXPECT_TRUE(names.contains(std::string(parameter.key))) << info.name << " " << parameter.key;
    }
  }
  EXPECT_EQ(keys[0].first, "ef");
}

TEST(CodecSpec, BadTextIsNamed) {
  std::string unknown = "unknown codec; known: ";
  for (const CodecInfo& info : codec_list()) {
    if (info.name != "none") unknown += ", ";
    unknown += info.name;
  }
  const std::pair<const char*, std::string> cases[] = {
      {"q7", "codec q7: " + unknown},
      {"", "codec : " + unknown},
      {"Q8", "codec Q8: " + unknown},
      {"q8+rans", "codec q8+rans: " + unknown},
      {"none:ef=on", "codec none:ef=on: none has no settings"},
      {"fp16:block=64", "codec fp16:block=64: unknown key 'block'; keys of fp16: ef="},
      {"q8:", "codec q8:: '' is not key=value; keys of q8: block=, round=, ef="},
      {"q8:block=64,", "codec q8:block=64,: '' is not key=value; keys of q8: block=, round=, ef="},
      {"q8:blok=64", "codec q8:blok=64: unknown key 'blok'; keys of q8: block=, round=, ef="},
      {"q8:block=64,block=64", "codec q8:block=64,block=64: block= is given twice"},
      {"q8:ef=on,ef=off", "codec q8:ef=on,ef=off: ef= is given twice"},
      {"q8:round=up", "codec q8:round=up: round=up must be nearest or stochastic"},
      {"q8:round=stochastic,ef=on",
       "codec q8:round=stochastic,ef=on: ef=on is refused: round=stochastic is unbiased "
       "without feedback, and random errors that are fed back may grow instead of averaging out (a "
       "published run that did both fell from 91 % to 29 % accuracy); ef=off is the default, "
       "ef=force enables it anyway"},
      {"randk:ef=on,scale=on",
       "codec randk:ef=on,scale=on: ef=on is refused: scale=on is unbiased without "
       "feedback, and random errors that are fed back may grow instead of averaging out (a "
       "published run that did both fell from 91 % to 29 % accuracy); ef=off is the default, "
       "ef=force enables it anyway"},
      {"q8:ef=1", "codec q8:ef=1: ef=1 must be on, off or force"},
      {"q8:block=4", "codec q8:block=4: block=4 must be a multiple of 8 from 8 to 16384"},
      {"q8:block=100", "codec q8:block=100: block=100 must be a multiple of 8 from 8 to 16384"},
      {"q8:block=-64", "codec q8:block=-64: block=-64 must be a multiple of 8 from 8 to 16384"},
      {"q8:block=", "codec q8:block=: block= must be a multiple of 8 from 8 to 16384"},
      {"q8:block=99999999999999999999999",
       "codec q8:block=99999999999999999999999: block=99999999999999999999999 must be a "
       "multiple of 8 from 8 to 16384"},
  };
  for (const auto& [text, message] : cases) {
    try {
      (void)parse_codec_spec(text);
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_EQ(error.what(), message);
    }
  }
}

}  // namespace
}  // namespace dp
