#include "app/dptrun/dptrun_hosts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>
#include <thread>

#include "app/options/options_values.hpp"
#include "app/options/text_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr WholeRange kSlots{1, 65536};
// 65,536 lines of 64 letters.
constexpr std::size_t kMostHostfile_bytes = 4 << 20;

void add(std::vector<RunHost>& hosts, const std::string& option, const RunHost& host) {
  if (host.name.empty() || host.name.front() == '-') {
    throw_error(ErrorKind::usage, "{}: {} is not a host name", option,
                host.name.empty() ? "an empty word" : shown(host.name));
  }
  for (const RunHost& other : hosts) {
    if (other.name != host.name) continue;
    throw_error(ErrorKind::usage, "{}: names {} twice; give it more slots instead", option,
                shown(host.name));
  }
  hosts.push_back(host);
}

bool is_own_address(const std::string& name) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool is_own = false;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const bool is_4 = one->ifa_addr->sa_family == AF_INET;
    if (!is_4 && one->ifa_addr->sa_family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto length = static_cast<socklen_t>(is_4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    is_own |= ::getnameinfo(one->ifa_addr, length, text.data(), text.size(), nullptr, 0,
                            NI_NUMERICHOST) == 0 &&
              name == text.data();
  }
  ::freeifaddrs(all);
  return is_own;
}

bool is_this_host(const std::string& name) {
  char own[256] = {};
  ::gethostname(own, sizeof own - 1);
  const std::string full = own;
  return name == "localhost" || name.starts_with("127.") || name == full ||
         name == full.substr(0, full.find('.')) || is_own_address(name);
}

pid_t start_question(const std::vector<std::string>& agent, const std::string& host) {
  std::vector<std::string> words = agent;
  words.push_back(host);
  words.push_back("true");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setsid();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int stream : {0, 1, 2}) ::dup2(nothing, stream);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<RunHost> parse_hosts(std::string_view text) {
  std::vector<RunHost> hosts;
  for (const std::string& part : split_at_commas(text)) {
    RunHost host;
    const std::size_t colon = part.rfind(':');
    host.name = part.substr(0, colon);
    if (colon != std::string::npos) {
      host.slots = parse_whole("--host", part.substr(colon + 1), kSlots);
    }
    add(hosts, "--host", host);
  }
  return hosts;
}

std::vector<RunHost> read_hostfile(const std::string& path) {
  const std::string text = read_text_file("--hostfile", path, kMostHostfile_bytes, "a hostfile");
  std::istringstream lines(text);
  std::vector<RunHost> hosts;
  int number = 0;
  std::string line;
  while (std::getline(lines, line)) {
    const std::string where = fmt::format("--hostfile {}:{}", path, ++number);
    const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    RunHost host{.name = words.front()};
    for (std::size_t i = 1; i < words.size(); ++i) {
      constexpr std::string_view kKey = "slots=";
      if (words[i].starts_with("max_slots=") || words[i].starts_with("max-slots=")) continue;
      if (!words[i].starts_with(kKey)) {
        throw_error(ErrorKind::usage, "{}: {} is unknown; allowed: NAME slots=N", where,
                    shown(words[i]));
      }
      host.slots = parse_whole(where + " slots", words[i].substr(kKey.size()), kSlots);
    }
    add(hosts, where, host);
  }
  if (hosts.empty()) throw_error(ErrorKind::usage, "--hostfile {}: names no host", shown(path));
  return hosts;
}

std::string to_text(const std::vector<RunHost>& hosts) {
  std::string text;
  for (const RunHost& host : hosts) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, host.slots);
  }
  return text;
}

std::vector<bool> ask_hosts(const std::vector<RunHost>& hosts, const std::string& agent,
                            double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> command = words_of(agent);
  std::vector<bool> answers(hosts.size());
  std::vector<pid_t> children(hosts.size(), 0);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (is_this_host(hosts[i].name)) {
      answers[i] = true;
    } else {
      children[i] = start_question(command, hosts[i].name);
    }
  }
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(timeout_s));
  const auto is_asked = [](pid_t child) { return child > 0; };
  while (std::ranges::any_of(children, is_asked)) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (!is_asked(children[i])) continue;
      const bool is_late = Clock::now() > end;
      if (is_late) ::kill(-children[i], SIGKILL);
      int status = 0;
      const pid_t ended = ::waitpid(children[i], &status, is_late ? 0 : WNOHANG);
      if (ended == 0) continue;
      // `ended` is below 0 if another thread has waited for all children of this process. The
      // host's answer is then unknown.
      const bool is_known = ended == children[i] && !is_late;
      answers[i] = is_known && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      children[i] = 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return answers;
}

}  // namespace dp
