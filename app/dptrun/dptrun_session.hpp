// A command in a session of its own (setsid), with its output in pipes, and the end of all that it
// leaves behind.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace dp {

class Session {
 public:
  // Starts it, with standard input from /dev/null and no signal blocked. If this process dies, the
  // command gets SIGTERM. Throws Error(usage) if it cannot be started.
  explicit Session(const std::vector<std::string>& words);
  ~Session();  // end()
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int output() const { return output_; }
  [[nodiscard]] int errors() const { return errors_; }
  // To the command alone. Does nothing once it has ended.
  void send(int signal) const;
  // What waitpid() gives, once the command has ended. Never waits.
  [[nodiscard]] std::optional<int> status();
  // Kills what still runs of the session on this host, the command included, and waits until it is
  // gone.
  void end();

 private:
  pid_t command_ = 0;
  int output_ = -1, errors_ = -1;
  std::optional<int> status_;
};

}  // namespace dp
