#include "io/files/trace_file.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <iterator>

#include "io/files/json_object.hpp"
#include "io/files/new_file.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// In the trace, each rank has a range of this many thread identifiers. The first two are for the
// threads "compute" and "exchange", followed by one for each bucket. The last one is for gathers of
// statistics, which may run at the same time as buckets.
constexpr std::size_t kNumbersPerRank = 10'000;
enum Thread : std::size_t { kCompute, kExchange, kFirstBucket, kGather = kNumbersPerRank - 1 };

std::size_t process_of(std::size_t rank) { return (rank + 1) * kNumbersPerRank; }

std::size_t thread_of(const TraceEvent& event) {
  if (event.kind == TraceKind::bucket) return kFirstBucket + event.id;
  if (event.kind == TraceKind::gather) return kGather;
  return event.kind < TraceKind::bucket ? kCompute : kExchange;
}

struct KindText {
  const char* name;  // of the slice; other names are built below
  const char* category;
};

const KindText& text_of(TraceKind kind) {
  // The index is the TraceKind.
  static constexpr KindText kTexts[] = {
      {"step", "step"},         {"data", "part"},
      {"forward", "part"},      {"backward", "part"},
      {"exposed wait", "part"}, {"optimizer", "part"},
      {"loss", "forward"},      {"", "forward"},  // layers use their own names
      {"", "backward"},         {"wait: statistics", "wait"},
      {"bucket", "bucket"},     {"encode", "encode"},
      {"decode", "decode"},     {"wait: wire", "wait"},
      {"wait: peer", "wait"},   {"P = M Q", "encode"},
      {"Q = M^T P", "encode"},  {"P Q^T", "decode"},
      {"hook", "hook"},         {"statistics", "statistics"}};
  static_assert(std::size(kTexts) == static_cast<std::size_t>(TraceKind::gather) + 1);
  return kTexts[static_cast<std::size_t>(kind)];
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

}  // namespace

TraceFile::TraceFile(const std::string& path, TraceInfo info)
    : path_(path),
      part_(create_fresh_file(Setting{"trace"}, path, "part")),
      info_(std::move(info)) {
  try {
    attempt([&] { file_ = open_file(part_, O_WRONLY | O_NOFOLLOW); });
  } catch (const Error&) {
    ::unlink(part_.c_str());
    throw;
  }
  append_header();
}

TraceFile::~TraceFile() {
  if (!is_whole_) ::unlink(part_.c_str());
}

void TraceFile::append_header() {
  fmt::format_to(std::back_inserter(text_), "{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{{");
  for (const auto& [name, value] : info_.about) {
    fmt::format_to(std::back_inserter(text_), "\"{}\":\"{}\",", json_escaped(name),
                   json_escaped(value));
  }
  std::vector<double> errors_us;
  for (const std::int64_t error_ns : info_.clock_errors_ns) errors_us.push_back(us(error_ns));
  fmt::format_to(std::back_inserter(text_),
                 "\"ranks\":{},\"clock\":\"rank 0's clock; other hosts' clocks were compared with "
                 "it by round trips to "
                 "it\",\"clock_error_us\":[{:.3f}],\"slices_left_out\":[{}]}},\n\"traceEvents\":[",
                 info_.hosts.size(), fmt::join(errors_us, ","), fmt::join(info_.left_out, ","));
  for (std::size_t rank = 0; rank < info_.hosts.size(); ++rank) {
    const std::size_t process = process_of(rank);
    append_name("process", process, process, fmt::format("rank {}, {}", rank, info_.hosts[rank]));
    append_name("thread", process, process + kCompute, "compute");
    append_name("thread", process, process + kExchange, "exchange");
    for (std::size_t b = 0; b < info_.bucket_elements.size(); ++b) {
      append_name("thread", process, process + kFirstBucket + b, fmt::format("bucket {}", b));
    }
    if (info_.has_gatherings) append_name("thread", process, process + kGather, "statistics");
  }
}

// Gives a process or a thread its name and its position in the display.
void TraceFile::append_name(const char* what, std::size_t process, std::size_t thread,
                            const std::string& name) {
  const bool is_first = process == process_of(0) && std::string_view(what) == "process";
  fmt::format_to(std::back_inserter(text_),
                 "{}\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}_name\","
                 "\"args\":{{\"name\":\"{}\"}}}},\n"
                 "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}_sort_index\","
                 "\"args\":{{\"sort_index\":{}}}}}",
                 is_first ? "" : ",", process, thread, what, json_escaped(name), process, thread,
                 what, thread);
}

void TraceFile::append(std::size_t rank, std::span<const TraceEvent> events) {
  for (const TraceEvent& event : events) {
    append_event(rank, event);
    if (text_.size() > 1u << 16) flush();
  }
}

const std::string& TraceFile::codec_of(const TraceEvent& event) const {
  const TraceInfo::Codecs* codecs = nullptr;
  for (const TraceInfo::Codecs& later : info_.codecs) {
    if (later.first_step <= event.step) codecs = &later;
  }
  DP_ASSERT(codecs != nullptr && event.id < codecs->specs.size(), "bucket {} in step {}", event.id,
            event.step);
  return codecs->specs[event.id];
}

void TraceFile::append_event(std::size_t rank, const TraceEvent& event) {
  const auto out = std::back_inserter(text_);
  const KindText& text = text_of(event.kind);
  const auto step = std::uint64_t{event.step} + 1;
  fmt::format_to(out, ",\n{{\"ph\":\"X\",\"name\":\"{}", text.name);
  if (event.kind == TraceKind::step) {
    fmt::format_to(out, " {}", step);
  } else if (event.kind == TraceKind::bucket) {
    const std::string& codec = codec_of(event);
    fmt::format_to(out, " {}, {}", event.id, codec.substr(0, codec.find(':')));
  } else if (event.kind == TraceKind::layer_forward || event.kind == TraceKind::layer_backward) {
    fmt::format_to(out, "{}", json_escaped(info_.layers.at(event.id)));
  }
  const std::size_t process = process_of(rank);
  fmt::format_to(out,
                 "\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
                 "\"args\":{{\"step\":{}",
                 text.category, process, process + thread_of(event), us(event.begin_ns),
                 us(event.end_ns - event.begin_ns), step);
  if (event.kind >= TraceKind::bucket && event.kind != TraceKind::gather)
    fmt::format_to(out, ",\"bucket\":{}", event.id);
  switch (event.kind) {
    case TraceKind::bucket:
      fmt::format_to(out, ",\"codec\":\"{}\",\"elements\":{},\"sent_bytes\":{}",
                     json_escaped(codec_of(event)), info_.bucket_elements.at(event.id),
                     event.bytes);
      break;
    case TraceKind::gather:
      fmt::format_to(out, ",\"sent_bytes\":{}", event.bytes);
      break;
    case TraceKind::encode:
    case TraceKind::decode:
      fmt::format_to(out, ",\"segment\":{},\"sum\":\"{}\",\"bytes\":{}", event.segment,
                     event.is_total ? "total" : "partial", event.bytes);
      break;
    case TraceKind::p_factor:
    case TraceKind::q_factor:
    case TraceKind::p_q_product:
      fmt::format_to(out, ",\"tensor\":{}", event.segment);
      break;
    default:
      break;
  }
  fmt::format_to(out, "}}}}");
}

void TraceFile::close() {
  fmt::format_to(std::back_inserter(text_), "\n]}}\n");
  flush();
  attempt([&] {
    sync_file(file_);
    file_.close();
  });
  rename_to_new_file(Setting{"trace"}, part_, path_);
  is_whole_ = true;
  attempt([&] { sync_folder_of(path_); });
}

void TraceFile::flush() {
  attempt([&] { write_all(file_, std::as_bytes(std::span(text_.data(), text_.size())), bytes_); });
  bytes_ += text_.size();
  text_.clear();
}

template <class Work>
void TraceFile::attempt(Work work) const {
  try {
    work();
  } catch (const Error& error) {
    throw SettingError(Setting{"trace"}, is_whole_ ? path_ : part_,
                       fmt::format("cannot be written: {}", error.what()), ErrorKind::data);
  }
}

}  // namespace dp
