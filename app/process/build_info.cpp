#include "app/process/build_info.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <mpi.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

namespace dp {
namespace {

// Calls found(bytes) with the build id of the first object, the program itself.
int find_build_id(dl_phdr_info* object, std::size_t, void* found) {
  for (const auto& segment : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
    if (segment.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    const char* end = at + segment.p_memsz;
    const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* bytes = name + padded(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        static_cast<std::string*>(found)->assign(bytes, note.n_descsz);
        return 1;
      }
      at = bytes + padded(note.n_descsz);
    }
  }
  return 1;  // other objects are libraries
}

}  // namespace

std::string git_revision() { return DP_GIT_REVISION; }

std::string build_name() { return fmt::format("{} ({})", DP_VERSION, git_revision()); }

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(std::max(length, 0)));
  return all.substr(0, all.find(','));
}

std::string build_id() {
  std::string id;
  dl_iterate_phdr(find_build_id, &id);
  if (id.empty()) {
    std::ifstream program("/proc/self/exe", std::ios::binary);
    id.assign(std::istreambuf_iterator<char>(program), {});
  }
  return fmt::format("{:016x}", XXH3_64bits(id.data(), id.size()));
}

std::string_view architecture() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "another architecture";
#endif
}

}  // namespace dp
