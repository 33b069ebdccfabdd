// Codec specs: the text that a user writes after --compress, NAME[:key=value,...], and the table of
// codecs and keys. --help, the tests and the bench read the same table.
//
// An invalid spec is Error(usage); the message begins with "--compress TEXT: " and lists the
// allowed values.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

// One key of a codec. `block` (floats that share a scale) and `ef` (error feedback) mean the same
// for all codecs that have them; other keys are specific to a codec.
struct CodecParameter {
  enum class Kind { whole, number, choice };
  std::string_view key;
  std::string_view help;  // one line
  Kind kind = Kind::number;
  double preset = 0.0;  // the default value; for a choice, its index
  // The limits of a number.
  double least = 0.0, most = 0.0;
  bool is_above_least = false;    // `least` itself is not allowed
  std::size_t multiple_of = 1;    // for whole numbers
  std::string_view choices = {};  // for a choice: "nearest|stochastic"
};

// The allowed values, for help and errors: "a multiple of 8 from 8 to 16384", "on or off".
[[nodiscard]] std::string allowed_values(const CodecParameter& parameter);

inline constexpr std::size_t kMinBlock = 8, kMaxBlock = 16384;

constexpr CodecParameter block_parameter(std::size_t preset) {
  return {.key = "block",
          .help = "values that share a scale",
          .kind = CodecParameter::Kind::whole,
          .preset = static_cast<double>(preset),
          .least = kMinBlock,
          .most = kMaxBlock,
          .multiple_of = 8};
}
// The default of `ef` depends on whether the spec is biased: see CodecInfo.
constexpr CodecParameter feedback_parameter() {
  return {.key = "ef",
          .help =
              "error feedback: the dropped part is added to the next step's gradient; force: on "
              "even if it may diverge",
          .kind = CodecParameter::Kind::choice,
          .choices = "on|off|force"};
}
constexpr CodecParameter choice_parameter(std::string_view key, std::string_view help,
                                          std::string_view choices) {
  return {.key = key, .help = help, .kind = CodecParameter::Kind::choice, .choices = choices};
}
constexpr CodecParameter whole_parameter(std::string_view key, std::string_view help, double preset,
                                         double least, double most) {
  return {.key = key,
          .help = help,
          .kind = CodecParameter::Kind::whole,
          .preset = preset,
          .least = least,
          .most = most};
}
constexpr CodecParameter number_parameter(std::string_view key, std::string_view help,
                                          double preset, double least, double most,
                                          bool is_above_least = false) {
  return {.key = key,
          .help = help,
          .kind = CodecParameter::Kind::number,
          .preset = preset,
          .least = least,
          .most = most,
          .is_above_least = is_above_least};
}

// The properties of a codec.
struct CodecInfo {
  std::string_view name;
  std::string_view help;   // one line
  bool is_biased = false;  // its errors do not average out by themselves
  // The "key=choice" that makes the codec unbiased. With this choice, the codec draws random
  // numbers, and its errors average out. Feedback is then off, and ef=on is refused (ef=force is
  // not), because a residual of random errors would grow instead of being sent.
  std::string_view unbiased_when = {};
  // The keys, in the order of the canonical form. They are constants and never freed.
  std::span<const CodecParameter> parameters = {};
  // The codec for one-dimensional tensors and for buckets too small to gain from compression.
  // Usually this is `none` (fp32). A codec names another one if, in fp32, these tensors would take
  // as many bytes as all other tensors together.
  std::string_view small_codec = "none";
  // The codec's preferred topology, used if the user chooses none; empty: the usual topology.
  std::string_view topology = {};
  // The specs that dpbench and --plan measure; empty: the name alone.
  std::span<const std::string_view> samples = {};
  // The codec is an exchange and does not encode segments: make_codec returns null.
  bool is_exchange = false;

  // Returns null if the codec has no such key.
  [[nodiscard]] const CodecParameter* find(std::string_view key) const;
  // Whether the codec drops values that can be fed back; `ef=` is then allowed.
  [[nodiscard]] bool can_feedback() const { return find("ef") != nullptr; }
};

// Names and texts for --help. codec_help() lists every codec with its size and its keys' defaults;
// codec_key_help() lists what the keys mean and which values they allow.
using HelpEntries = std::vector<std::pair<std::string, std::string>>;
[[nodiscard]] HelpEntries codec_help();
[[nodiscard]] HelpEntries codec_key_help();

// All codecs, in the order in which help lists them.
[[nodiscard]] std::span<const CodecInfo> codec_list();
// The samples of all codecs, in the same order.
[[nodiscard]] std::vector<std::string> codec_samples();
// Returns null if no codec has that name.
[[nodiscard]] const CodecInfo* find_codec(std::string_view name);

// A codec and its settings, checked.
struct CodecSpec {
  std::string name = "none";
  std::size_t block = 1;  // in floats; 1 means that there are no blocks
  bool feedback = false;
  // The values of all other keys. A choice is stored as its index among the choices.
  std::map<std::string, double, std::less<>> settings = {};

  // The codec `none`, which sends fp32.
  [[nodiscard]] static CodecSpec exact() { return {}; }
  [[nodiscard]] bool is_exact() const { return *this == exact(); }

  // The value of a key; the codec must have it.
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] std::size_t whole(std::string_view key) const;
  [[nodiscard]] bool has_choice(std::string_view key, std::string_view choice) const;
  // True if the errors of this codec, with these settings, do not average out.
  [[nodiscard]] bool is_biased() const;

  // The canonical form with every key: parse_codec_spec(text()) gives an equal spec.
  [[nodiscard]] std::string text() const;
  auto operator<=>(const CodecSpec&) const = default;
};

// Reads "q8" or "q4:block=256,ef=off". Throws Error(usage) for unknown names and keys, repeated
// keys and values out of range.
[[nodiscard]] CodecSpec parse_codec_spec(std::string_view text);

}  // namespace dp
