#include "app/dptrun/dptrun_session.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr auto kMostKilling = std::chrono::seconds(5);

void make_pipe(int (&ends)[2]) {
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw_error(ErrorKind::internal, "no pipe: {}", ::strerror(errno));
  }
}

// Numbers after the command's name in /proc/PID/stat: state, parent, group, session.
struct ProcessState {
  char state = '?';
  pid_t parent = 0, group = 0, session = 0;
};

std::optional<ProcessState> state_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  ProcessState state;
  rest >> state.state >> state.parent >> state.group >> state.session;
  return rest ? std::optional(state) : std::nullopt;
}

// The processes of the session that have not ended.
std::vector<pid_t> processes_of(pid_t session) {
  std::vector<pid_t> found;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    pid_t process = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    const auto state = state_of(process);
    if (state && state->session == session && state->state != 'Z') found.push_back(process);
  }
  ::closedir(folder);
  return found;
}

}  // namespace

Session::Session(const std::vector<std::string>& words) {
  int output[2], errors[2], failure[2];
  make_pipe(output);
  make_pipe(errors);
  make_pipe(failure);
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Ranks that lose mpirun become children of this process, which then sees them end.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const pid_t parent = ::getpid();
  command_ = ::fork();
  if (command_ < 0) throw_error(ErrorKind::internal, "no process: {}", ::strerror(errno));
  if (command_ == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGXFSZ, SIG_DFL);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(output[1], STDOUT_FILENO);
    ::dup2(errors[1], STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    const int why = errno;
    static_cast<void>(!::write(failure[1], &why, sizeof why));
    ::_exit(127);
  }
  for (const int end : {output[1], errors[1], failure[1]}) ::close(end);
  output_ = output[0];
  errors_ = errors[0];
  int why = 0;
  const bool has_failed = ::read(failure[0], &why, sizeof why) == sizeof why;
  ::close(failure[0]);
  if (has_failed) {
    ::waitpid(command_, nullptr, 0);
    ::close(output_);
    ::close(errors_);
    throw_error(ErrorKind::usage, "{} cannot be started: {}", words.front(), ::strerror(why));
  }
}

Session::~Session() {
  end();
  ::close(output_);
  ::close(errors_);
}

void Session::send(int signal) const {
  if (!status_) ::kill(command_, signal);
}

std::optional<int> Session::status() {
  int status = 0;
  if (!status_ && ::waitpid(command_, &status, WNOHANG) == command_) status_ = status;
  return status_;
}

void Session::end() {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < kMostKilling) {
    const std::vector<pid_t> left = processes_of(command_);
    if (left.empty()) break;
    for (const pid_t process : left) ::kill(process, SIGKILL);
    static_cast<void>(status());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  static_cast<void>(status());
  // Adopted ranks that have ended must be waited for, too.
  if (status_) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
  }
}

}  // namespace dp
