// A command in a session of its own (setsid), with pipes for its output. end() kills everything
// that the session leaves behind.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace dp {

class Session {
 public:
  // Starts the command, with standard input from /dev/null and no signal blocked. If this process
  // dies, the command gets SIGTERM. Throws Error(usage) if it cannot be started.
  explicit Session(const std::vector<std::string>& words);
  ~Session();  // end()
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int output() const { return output_; }
  [[nodiscard]] int errors() const { return errors_; }
  // Sends a signal to the command alone. Does nothing once the command has ended.
  void send(int signal) const;
  // The command's status in the form of waitpid(), once the command has ended. Never waits.
  [[nodiscard]] std::optional<int> status();
  // Kills all processes of the session that still run on this host, including the command, and
  // waits until they are gone.
  void end();

 private:
  pid_t command_ = 0;
  int output_ = -1, errors_ = -1;
  std::optional<int> status_;
};

}  // namespace dp
