// A library that is loaded before all others (LD_PRELOAD). It stops this rank inside a call, as
// SIGSTOP would at that moment, or makes it slow there:
//     DP_STOP_IN=RANK:CALL
//     DP_PAUSE_IN=RANK:CALL:SECONDS
// CALL is MPI_Init, MPI_Comm_dup, MPI_Finalize, "MPI_Isend N" for the Nth of these, the end of the
// path of a file that is opened by fopen, or "fsync ..." with a part of the path of a file or
// folder that is brought to the disk.
#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

// What the variable says of this rank: "CALL" or "CALL:SECONDS".
std::string_view wish(const char* variable) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* text = std::getenv(variable);
  if (rank == nullptr || text == nullptr) return {};
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  return all.substr(0, colon) == rank ? all.substr(colon + 1) : std::string_view();
}

template <class IsHere>
void obey(IsHere is_here) {
  if (is_here(wish("DP_STOP_IN"))) std::raise(SIGSTOP);
  const std::string_view pause = wish("DP_PAUSE_IN");
  const std::size_t colon = pause.rfind(':');
  if (colon == std::string_view::npos || !is_here(pause.substr(0, colon))) return;
  ::usleep(static_cast<useconds_t>(1e6 * std::atof(pause.data() + colon + 1)));
}

void in_call(std::string_view name) {
  obey([name](std::string_view call) { return call == name; });
}

std::FILE* open_file(const char* function, const char* path, const char* mode) {
  const std::string_view name = path;
  obey([name](std::string_view end) { return !end.empty() && name.ends_with(end); });
  using Open = std::FILE* (*)(const char*, const char*);
  return reinterpret_cast<Open>(::dlsym(RTLD_NEXT, function))(path, mode);
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  in_call("MPI_Init");
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  in_call("MPI_Comm_dup");
  return PMPI_Comm_dup(comm, copy);
}

int MPI_Finalize() {
  in_call("MPI_Finalize");
  return PMPI_Finalize();
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  static std::atomic<int> calls = 0;
  in_call("MPI_Isend " + std::to_string(++calls));
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int fsync(int file) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  const std::string_view name(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  obey([name](std::string_view call) {
    constexpr std::string_view kCall = "fsync ";
    return call.starts_with(kCall) && name.find(call.substr(kCall.size())) != name.npos;
  });
  return ::fdatasync(file);
}

std::FILE* fopen(const char* path, const char* mode) { return open_file("fopen", path, mode); }
std::FILE* fopen64(const char* path, const char* mode) { return open_file("fopen64", path, mode); }

}  // extern "C"
