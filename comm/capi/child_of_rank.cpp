#include "comm/capi/child_of_rank.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "kernels/base/error.hpp"

namespace dp::capi {
namespace {

constexpr const char* kNote = "DPTRAIN_COMM_RANK";

std::string job() {
  const char* name = std::getenv("PMIX_NAMESPACE");
  return name == nullptr ? "" : name;
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int parent_of(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // "4711 (name) S 4710 ...": the name may have spaces and brackets.
  const std::size_t bracket = text.rfind(") ");
  if (bracket == std::string::npos || bracket + 4 >= text.size()) return 0;
  return number(std::string_view(text).substr(bracket + 4));
}

}  // namespace

void note_rank(int rank, int size) {
  setenv(kNote, fmt::format("{}:{}:{}:{}", ::getpid(), rank, size, job()).c_str(), 1);
}

void require_no_child() {
  const char* text = std::getenv(kNote);
  if (text == nullptr) return;
  const std::string_view note = text;
  const std::size_t rank = note.find(':') + 1, size = note.find(':', rank) + 1;
  const std::size_t name = note.find(':', size) + 1;
  if (rank == 0 || size == 0 || name == 0 || note.substr(name) != job()) return;
  const int noted = number(note);
  for (int process = parent_of(::getpid()); process > 1; process = parent_of(process)) {
    if (process != noted) continue;
    throw_error(ErrorKind::usage,
                "this process was started by rank {} (process {}), which alone takes part in the "
                "exchange; call dptrain_comm there only",
                number(note.substr(rank)), noted);
  }
}

}  // namespace dp::capi
