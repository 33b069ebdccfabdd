#include "app/dptrun/dptrun_options.hpp"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "app/options/options_config.hpp"
#include "app/options/options_print.hpp"
#include "app/options/options_values.hpp"
#include "app/options/options_words.hpp"
#include "app/options/text_file.hpp"
#include "app/process/run_status.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr const char* kHelp =
    "dptrun [options] -- dptrain ... --checkpoint DIR ...: trains until it is done.\n"
    "dptrun status: prints the hosts, shares, step, speed and time left of your runs here.\n"
    "\n  dptrun -np 4 -- dptrain --data-dir data --checkpoint checkpoints\n"
    "  dptrun --host a:2,b:2 -- dptrain --compress q8 --checkpoint checkpoints\n"
    "\nStarts dptrain with mpirun. If a rank, a host, the network or mpirun fails, dptrun\n"
    "restarts it from the newest checkpoint (--resume), without hosts that do not answer.\n"
    "Hosts that answer again, and changes of the hostfile, change the run's hosts after a\n"
    "checkpoint (--join-after).\n"
    "\nCtrl-C and SIGTERM end the run after the current step, or round, with a checkpoint and "
    "exit\n"
    "code 75; the same command with --resume continues. A second one ends it at once.\n"
    "\ndptrun restarts dptrain after exit code 4, after signals and if mpirun fails, once\n"
    "after exit codes 5 and 70, and never after 2, 3 and 75. Its own exit code is the last\n"
    "run's, or 128 + the signal's number after a second signal.\n";

struct Texts {
  std::string host, hostfile, signal, mpirun;
};

constexpr std::array<std::pair<const char*, int>, 5> kSignals = {
    {{"HUP", SIGHUP}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"XCPU", SIGXCPU}, {"TERM", SIGTERM}}};

int parse_signal(std::string_view text) {
  std::string_view name = text;
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (const auto& [known, number] : kSignals) {
    if (name == known) return number;
  }
  throw_error(ErrorKind::usage, "--signal {}: must be HUP, TERM, USR1, USR2 or XCPU", shown(text));
}

OptionTable table_of(DptrunOptions& options, Texts& texts) {
  OptionRow ranks = whole_row("np", options.ranks, {0, 65536},
                              "ranks; if not given, one per slot of the hosts, or mpirun's choice");
  ranks.shown_default = "not set";
  OptionRow silence =
      real_row("silence", options.silence_s, {.least = 0, .most = 1e6},
               "a run is dead after this many seconds without a sign of life; 0: twice dptrain's "
               "--comm-timeout, at least a minute");
  return {
      {"Ranks and hosts",
       {std::move(ranks),
        text_row("host", texts.host, "NAME:N,...", "NAME:N,NAME:N,...",
                 "hosts, and the number of ranks on each host"),
        text_row("hostfile", texts.hostfile, "FILE", "a path",
                 "hosts from a file with lines such as NAME slots=N"),
        real_row("join-after", options.join_after_s, {.least = 0, .most = 1e6},
                 "seconds between looks for hosts that come or go; if they change, the run writes "
                 "a checkpoint and restarts with them; 0: never"),
        whole_row("min-hosts", options.min_hosts, {1, 65536},
                  "fewest hosts with which the run continues; with fewer it waits"),
        text_row("agent", options.agent, "COMMAND", "a command",
                 "command that runs WORDS on a host (COMMAND HOST WORDS...), also for mpirun"),
        text_row("mpirun", texts.mpirun, "ARGUMENTS", "words with blanks between them",
                 "more arguments for mpirun, such as --mpirun=\"--mca btl_tcp_if_include eth0\""),
        flag_row("oversubscribe", options.oversubscribe, "allow more ranks than cores")}},
      {"Restarts",
       {whole_row("max-restarts", options.max_restarts, {0, 1000000},
                  "restarts in a row without a newer checkpoint before dptrun gives up"),
        std::move(silence),
        text_row("signal", texts.signal, "NAME", "HUP, TERM, USR1, USR2 or XCPU",
                 "one more signal that asks the run to stop, such as Slurm's before a job ends "
                 "(sbatch --signal=B:USR1@60)"),
        call_row("version", "print the version, then end", [] {}),
        call_row("help", "print this help, then end", [] {})}}};
}

// The value of dptrain's option "--NAME", if the command has it: "--NAME value" or "--NAME=value".
std::optional<std::string> word_in(const std::vector<std::string>& command,
                                   const std::string& name) {
  const std::string option = "--" + name;
  for (std::size_t i = 1; i < command.size(); ++i) {
    if (command[i] == option) return i + 1 < command.size() ? command[i + 1] : "";
    if (command[i].starts_with(option + "=")) return command[i].substr(option.size() + 1);
  }
  return std::nullopt;
}

// The value as in word_in() or, if the command does not have it, from the command's configuration
// file.
std::optional<std::string> value_in(const std::vector<std::string>& command,
                                    const std::string& name) {
  if (auto word = word_in(command, name)) return word;
  const std::optional<std::string> file = word_in(command, "config");
  if (!file) return std::nullopt;
  if (is_pipe(*file)) {
    throw_error(ErrorKind::usage,
                "--config {}: is a pipe, but every restart reads the configuration again; must be "
                "the path of a file",
                shown(*file));
  }
  std::optional<std::string> value;
  for (const ConfigLine& line : parse_config_lines(read_config_file(*file), *file)) {
    if (line.name == name) value = line.value;
  }
  return value;
}

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// "dptrain" is the program in the folder "bin" beside this program's folder or, if there is none,
// the program in PATH. In a bundle, this program is in libexec, and bin has the commands that start
// the programs.
std::string program_of(const std::string& word) {
  if (word.find('/') != std::string::npos) {
    if (is_program(word)) return word;
  } else {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    const char* path = std::getenv("PATH");
    const std::string beside = (self.parent_path().parent_path() / "bin").string();
    std::istringstream folders(beside + ":" + (path == nullptr ? "" : path));
    for (std::string folder; std::getline(folders, folder, ':');) {
      const auto program = std::filesystem::path(folder) / word;
      if (!folder.empty() && is_program(program)) return program.string();
    }
  }
  throw_error(ErrorKind::usage, "{}: no such program", shown(word));
}

}  // namespace

DptrunOptions parse_dptrun(const std::vector<std::string>& arguments) {
  DptrunOptions options;
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), dashes);
  for (std::string& word : own) {
    if (word == "-np" || word == "-n") word = "--np";  // as mpirun has it
    // The blank in front keeps a value that begins with dashes from being taken for an option.
    if (word.starts_with("--mpirun=--")) word.insert(word.find('=') + 1, " ");
  }
  options.asks_for_help = asks_for(own, "--help");
  options.asks_for_version = asks_for(own, "--version");
  if (options.asks_for_help || options.asks_for_version) return options;
  Texts texts;
  OptionTable table = table_of(options, texts);
  const CommandLine line = {.table = table, .program = "dptrun"};
  for (const auto& [row, value] : line.split(own).options) {
    if (row->name == "np") static_cast<void>(parse_whole("-np", value, {1, 65536}));
    set_option(*row, value);
  }
  if (!texts.host.empty() && !texts.hostfile.empty()) {
    throw_error(ErrorKind::usage, "--hostfile: not with --host; give one of them");
  }
  if (!texts.host.empty()) options.hosts = parse_hosts(texts.host);
  if (!texts.hostfile.empty()) options.hosts = read_hostfile(texts.hostfile);
  options.hostfile = texts.hostfile;
  if (options.min_hosts > 1 && options.hosts.empty()) {
    throw_error(ErrorKind::usage, "--min-hosts {}: only with --host or --hostfile",
                options.min_hosts);
  }
  if (options.min_hosts >
      static_cast<std::int64_t>(std::max<std::size_t>(options.hosts.size(), 1))) {
    throw_error(ErrorKind::usage, "--min-hosts {}: there are only {} hosts", options.min_hosts,
                options.hosts.size());
  }
  if (!options.hosts.empty() && options.ranks > ranks_on({.hosts = options.hosts}, options.hosts)) {
    throw_error(ErrorKind::usage,
                "-np {}: the hosts have {} slots; name more with HOST:SLOTS, such as {}:{}",
                options.ranks, ranks_on({.hosts = options.hosts}, options.hosts),
                options.hosts.front().name, options.ranks);
  }
  if (!texts.signal.empty()) options.stop_signals.push_back(parse_signal(texts.signal));
  options.mpirun = words_of(texts.mpirun);

  if (dashes != arguments.end()) options.command.assign(dashes + 1, arguments.end());
  if (options.command.empty()) {
    throw_error(ErrorKind::usage,
                "needs a command after --, such as dptrun -np 4 -- dptrain "
                "--checkpoint DIR; see dptrun --help");
  }
  const std::string folder = value_in(options.command, "checkpoint").value_or("");
  if (folder.empty() || folder == "none") {
    throw_error(ErrorKind::usage,
                "dptrain needs --checkpoint DIR, so that a run that dies can continue");
  }
  options.command.front() = program_of(options.command.front());
  return options;
}

std::string dptrun_help() {
  DptrunOptions options;
  Texts texts;
  std::string text = kHelp;
  append_options(text, table_of(options, texts));
  return without_trailing_blanks(text);
}

std::int64_t ranks_on(const DptrunOptions& options, const std::vector<RunHost>& hosts) {
  if (hosts.empty()) return options.ranks;
  std::int64_t slots = 0;
  for (const RunHost& host : hosts) slots += host.slots;
  return options.ranks == 0 ? slots : std::min(slots, options.ranks);
}

std::vector<std::string> mpirun_words(const DptrunOptions& options,
                                      const std::vector<RunHost>& hosts, bool is_restart) {
  std::vector<std::string> words = {"mpirun", "-x", kStatusVariable};
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (::geteuid() == 0) add({"--allow-run-as-root"});
  if (options.oversubscribe) add({"--oversubscribe"});
  if (const std::int64_t ranks = ranks_on(options, hosts); ranks > 0) {
    add({"-np", std::to_string(ranks)});
  }
  if (!hosts.empty()) add({"--host", to_text(hosts)});
  if (!options.agent.empty()) add({"--mca", "plm_rsh_agent", options.agent});
  words.insert(words.end(), options.mpirun.begin(), options.mpirun.end());
  words.insert(words.end(), options.command.begin(), options.command.end());
  if (is_restart && std::ranges::count(options.command, "--resume") == 0) add({"--resume"});
  // With fewer ranks than planned, a run without a checkpoint begins as it would with all ranks.
  const std::int64_t planned = ranks_on(options, options.hosts);
  if (ranks_on(options, hosts) < planned && !word_in(options.command, "planned-ranks")) {
    add({"--planned-ranks", std::to_string(planned)});
  }
  return words;
}

double silence_of(const DptrunOptions& options) {
  if (options.silence_s > 0) return options.silence_s;
  const std::string timeout = value_in(options.command, "comm-timeout").value_or("60");
  // If the value is invalid, dptrain ends soon by itself.
  return 2 * std::max(30.0, std::strtod(timeout.c_str(), nullptr));
}

std::string agent_of(const DptrunOptions& options) {
  if (!options.agent.empty()) return options.agent;
  const auto& words = options.mpirun;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "plm_rsh_agent") return words[i + 1];
  }
  const char* variable = std::getenv("OMPI_MCA_plm_rsh_agent");
  if (variable != nullptr && *variable != '\0') return variable;
  return "ssh -o BatchMode=yes -o ConnectTimeout=5";
}

}  // namespace dp
