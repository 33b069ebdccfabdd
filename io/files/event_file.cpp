#include "io/files/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <span>

#include "io/files/saved_file.hpp"
#include "kernels/base/crc32c.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "events.out.tfevents.";
constexpr double kSavePeriod_s = 10;

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xFFu);
  return text;
}

// ---- protobuf: a field is a key, (number << 3) | kind, and a value ------------------------------

std::string varint(std::uint64_t value) {
  std::string text;
  for (; value > 127; value >>= 7) text += static_cast<char>((value & 127u) | 128u);
  return text + static_cast<char>(value);
}

std::string whole(unsigned number, std::int64_t value) {
  return varint(number << 3u) + varint(static_cast<std::uint64_t>(value));
}

std::string fixed64(unsigned number, double value) {
  return varint(number << 3u | 1u) + little_endian(std::bit_cast<std::uint64_t>(value), 8);
}

std::string fixed32(unsigned number, float value) {
  return varint(number << 3u | 5u) + little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

// A field that holds a text or an inner message.
std::string bytes(unsigned number, std::string_view value) {
  return varint(number << 3u | 2u) + varint(value.size()) + std::string(value);
}

// An Event.summary.value for a plug-in: { tag, tensor of one text, metadata }.
std::string plugin_value(std::string_view tag, std::string_view plugin, std::string_view content,
                         std::string_view tensor) {
  const std::string data = bytes(1, plugin) + (content.empty() ? "" : bytes(2, content));
  return bytes(5, bytes(1, bytes(1, tag) + bytes(8, tensor) + bytes(9, bytes(1, data))));
}

std::string record(std::string_view event) {
  const auto masked = [](std::string_view text) {
    const std::uint32_t crc = crc32c(std::as_bytes(std::span(text)));
    return little_endian(std::rotr(crc, 15) + 0xa282ead8u, 4);
  };
  const std::string length = little_endian(event.size(), 8);
  return length + masked(length) + std::string(event) + masked(event);
}

[[noreturn]] void fail(const std::string& path, std::string_view why) {
  throw_error(ErrorKind::data, "{}: cannot be written: {}", path, why);
}

}  // namespace

std::string why_no_event_folder(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) return "";
  if (!fs::is_directory(status)) return "is not a folder";
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return "cannot be written";
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(kBegin)) {
      return "has the events of another run, which TensorBoard would mix with this one's; give "
             "each "
             "run a folder of its own";
    }
  }
  return "";
}

EventFile::EventFile(const std::string& folder, double unix_s) : unix_s_(unix_s) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  // The fraction of a second keeps the names of two starts apart and in order.
  path_ = fs::path(folder) / fmt::format("{}{:017.6f}.{}.{}", kBegin, now_s(), host.data(),
                                         unix_s > 0 ? 0 : ::getpid());
  saved_at_s_ = now_s();
  add_event(bytes(3, "brain.Event:2"));
}

void EventFile::make() {
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  try {
    static_cast<void>(open_file(path_, O_WRONLY | O_CREAT | O_EXCL, 0666));
  } catch (const Error& reason) {
    throw_error(ErrorKind::data, "{}: cannot be created: {}", path_, reason.what());
  }
  is_made_ = true;
}

double EventFile::now_s() const { return unix_s_ > 0 ? unix_s_ : unix_now_s(); }

void EventFile::add_event(std::string_view fields) {
  unsaved_ += record(fixed64(1, now_s()) + std::string(fields));
}

void EventFile::add_start(std::int64_t step) {
  add_event(whole(2, step) + bytes(7, whole(1, 1)));  // SessionLog.status = START
}

void EventFile::add_scalars(std::int64_t step,
                            const std::vector<std::pair<std::string_view, double>>& scalars) {
  std::string values;
  for (const auto& [tag, value] : scalars) {
    if (!std::isfinite(value)) continue;
    values += bytes(1, bytes(1, tag) + fixed32(2, static_cast<float>(value)));
  }
  if (!values.empty()) add_event(whole(2, step) + bytes(5, values));
}

void EventFile::add_text(const std::string& tag, std::string_view text) {
  // TensorProto: a vector of one DT_STRING.
  const std::string tensor = whole(1, 7) + bytes(2, bytes(2, whole(1, 1))) + bytes(8, text);
  add_event(plugin_value(tag + "/text_summary", "text", "", tensor));
}

void EventFile::add_settings(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string info;  // SessionStartInfo
  for (const auto& [name, value] : settings) {
    info += bytes(1, bytes(1, name) + bytes(2, bytes(3, value)));  // a map of texts
  }
  info += fixed64(5, now_s());
  // An empty DT_FLOAT, because the plug-in reads only the metadata.
  add_event(plugin_value("_hparams_/session_start_info", "hparams", bytes(3, info),
                         whole(1, 1) + bytes(2, bytes(2, whole(1, 0)))));
}

void EventFile::save() {
  saved_at_s_ = now_s();
  if (unsaved_.empty()) return;
  if (!is_made_) make();
  FileDescriptor file;
  try {
    file = open_file(path_, O_WRONLY | O_NOFOLLOW);
  } catch (const Error& error) {
    fail(path_, error.what());
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < saved_) {
    fail(path_, "it has been shortened");
  }
  try {
    write_all(file, std::as_bytes(std::span(unsaved_)), saved_);
    file.close();
  } catch (const Error& error) {
    // Cut off a half-written record.
    if (file.is_open()) static_cast<void>(!::ftruncate(file.get(), static_cast<off_t>(saved_)));
    fail(path_, error.what());
  }
  saved_ += unsaved_.size();
  unsaved_.clear();
}

bool EventFile::is_save_due() const {
  return !unsaved_.empty() && now_s() - saved_at_s_ >= kSavePeriod_s;
}

}  // namespace dp
