// dptrain: data-parallel training of convolutional networks over slow networks.
//
// Every rank runs this main. Rank 0 reads the options and sends them to all; from then on all ranks
// do the same, each on its part of the data. An error is printed once, by one rank, and decides the
// exit code (--help lists the codes).
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_schedule.hpp"
#include "app/options/options_words.hpp"
#include "app/output/progress.hpp"
#include "app/planning/check.hpp"
#include "app/planning/plan.hpp"
#include "app/planning/prediction.hpp"
#include "app/process/process.hpp"
#include "app/process/rank_main.hpp"
#include "app/process/run_status.hpp"
#include "app/process/stop_notice.hpp"
#include "app/training/setup/agreement.hpp"
#include "app/training/trainer.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/topologies/exchange_kinds.hpp"
#include "comm/topologies/topology.hpp"
#include "io/files/event_file.hpp"
#include "io/files/new_file.hpp"
#include "io/images/dataset.hpp"
#include "io/log/run_log.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/file_size_limit.hpp"
#include "kernels/base/standard_streams.hpp"
#include "kernels/codecs/codec_spec.hpp"
#include "kernels/gpu_needs.hpp"
#include "net/models/registry.hpp"

namespace {

dp::OptionContext option_context(int ranks = 1) {
  dp::OptionContext context;
  context.ranks = static_cast<std::size_t>(ranks);
  context.models = dp::net::model_names();
  context.codecs = dp::codec_help();
  context.codec_keys = dp::codec_key_help();
  context.topologies.clear();
  for (const dp::Topology& topology : dp::topology_list()) {
    context.topologies.emplace_back(topology.name);
  }
  context.topology_for = dp::suitable_topology;
  context.takes_momentum = dp::takes_momentum;
  context.parse_compress = dp::parse_compress;
  context.datasets.clear();
  for (const dp::DatasetRow& row : dp::dataset_list()) {
    context.datasets.emplace_back(row.name, row.text);
  }
  context.detect_dataset = dp::detect_dataset;
  return context;
}

// Called before any work, so that a bad path is found before the data is loaded.
void check_new_files(const dp::Options& options) {
  struct File {
    dp::Setting setting;
    const std::string& path;
  };
  const File files[] = {{dp::Setting{"trace"}, options.trace},
                        {dp::Setting{"exported weights"}, options.export_file}};
  for (const File& file : files) {
    if (file.path == "none") continue;
    // In a resumed run these files may exist, because an earlier start wrote them.
    if (!options.resume) dp::check_new_file(file.setting, file.path);
    if (dp::is_same_file(file.path, options.log)) {
      dp::throw_error(dp::ErrorKind::usage, "{} {}: is also the name of the log; give another",
                      dp::kDptrainNames.option_of(file.setting), file.path);
    }
  }
  if (options.trace != "none" && dp::is_same_file(options.trace, options.export_file)) {
    dp::throw_error(dp::ErrorKind::usage, "--export {}: is also the name of --trace; give another",
                    options.export_file);
  }
}

void check_event_folder(const dp::Options& options) {
  if (options.tensorboard == "none" || options.resume) return;
  const std::string why = dp::why_no_event_folder(options.tensorboard);
  if (!why.empty()) {
    dp::throw_error(dp::ErrorKind::data, "--tensorboard {}: {}", options.tensorboard, why);
  }
}

// In a resumed run the trace of an earlier start stays as it is.
void leave_earlier_trace(dp::Options& options) {
  if (!options.resume || options.trace == "none" || !std::filesystem::exists(options.trace)) return;
  std::fprintf(stderr, "dptrain: --trace %s: exists already and is kept\n", options.trace.c_str());
  options.trace = "none";
}

// Rank 0 reads the command line and the configuration file, and the others use its result. A file
// or folder that only one host has therefore cannot give ranks different options.
dp::Options agreed_options(dp::Communicator& comm, const std::vector<std::string>& arguments) {
  const dp::OptionContext context = option_context(comm.size());
  dp::Options options;
  std::string text;
  dp::together(comm, dp::kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    options = dp::parse_options(arguments, context);
    if (options.action == dp::Options::Action::train ||
        options.action == dp::Options::Action::check) {
      if (options.log != "none" && !options.resume) dp::check_log_path(options.log);
      check_new_files(options);
      check_event_folder(options);
      leave_earlier_trace(options);
      std::vector<std::string> warnings = options.warnings();
      for (std::string& line : dp::batch_warnings(options, comm.size())) {
        warnings.push_back(std::move(line));
      }
      for (const std::string& line : warnings) {
        std::fprintf(stderr, "dptrain: %s\n", line.c_str());
      }
    }
    text = dp::config_text(options);
  });
  std::string action = std::to_string(static_cast<int>(options.action));
  comm.broadcast(action);
  comm.broadcast(text);
  if (comm.rank() != 0) options = dp::parse_config_text(text, "the options of rank 0", context);
  options.action = static_cast<dp::Options::Action>(std::stoi(action));
  dp::agree_on_options(comm, options, arguments, context);
  return options;
}

// Computes a few steps without training. Their times decide how many images each rank gets at
// first, and with --sync-every auto whether rounds begin in the first epoch. Rank 0 prints and logs
// the predicted time of a step.
void rehearse(dp::Run& run, dp::SharePlan& shares, dp::RoundPlan& rounds) {
  if (!dp::can_predict(run.plan) && !shares.can_begin()) return;
  const dp::Calibration calibration = dp::rehearse_run(run.plan, run.comm.rank(), run.machine.share,
                                                       *run.replica, *run.train_loader);
  const std::vector<std::size_t> before = shares.images_of(run.plan.global_batch);
  if (shares.can_begin()) shares.begin(calibration.computes_s());
  if (!dp::can_predict(run.plan)) return;
  const std::vector<std::size_t> images = shares.images_of(run.plan.global_batch);
  std::vector<double> factors;
  for (std::size_t r = 0; r < images.size(); ++r) {
    const bool is_changed = before[r] > 0 && images[r] != before[r];
    factors.push_back(is_changed ? static_cast<double>(images[r]) / static_cast<double>(before[r])
                                 : 1.0);
  }
  if (const auto predicted = dp::predict_run(run.plan, run.comm.rank(), std::move(factors),
                                             calibration, *run.replica, *run.train_loader)) {
    run.recorder->record_prediction(predicted->step, predicted->bits);
    rounds.predict_first(predicted->first_round);
  }
}

void train(dp::Communicator& comm, const dp::Options& options) {
  if (comm.rank() == 0) dp::StopNotice::speak();
  const std::unique_ptr<dp::RunSink> progress = dp::make_progress(options);
  const auto end = [&](int exit_code, const std::string& message) {
    if (comm.rank() == 0) progress->end(exit_code, message);
  };
  try {
    const std::string missing = dp::Trainer(options, comm, *progress).run(rehearse);
    comm.together([&] {
      if (!missing.empty()) throw dp::Error(dp::ErrorKind::data, missing);
    });
  } catch (...) {
    std::string message;
    const int exit_code = dp::exit_code_of_current_exception(message);
    end(exit_code, message);
    throw;
  }
  end(EXIT_SUCCESS, "");
}

int run(dp::Communicator& comm, const std::vector<std::string>& arguments) {
  comm.set_activity("the comparison of programs and options");
  dp::agree_on_program(comm);
  const dp::Options options = agreed_options(comm, arguments);
  comm.set_timeout_s(options.comm_timeout_s);
  const auto say = [&](const std::string& text) {
    if (comm.rank() == 0) std::fputs(text.c_str(), stdout);
  };
  switch (options.action) {
    case dp::Options::Action::help:  // main() answers these
    case dp::Options::Action::version:
      break;
    case dp::Options::Action::print_config:
      say(dp::config_text(options));
      break;
    case dp::Options::Action::check:
      return dp::check_run(options, comm);
    case dp::Options::Action::plan:
      dp::plan_run(options, comm);
      break;
    case dp::Options::Action::train:
      train(comm, options);
      break;
  }
  comm.set_activity("the end of the run");
  comm.together([] { dp::check_output(); });
  return EXIT_SUCCESS;
}

// The value of --comm-timeout before MPI has started: this rank reads its own command line. Errors
// in the command line are reported later.
double timeout_of(const std::vector<std::string>& arguments) {
  dp::OptionContext context = option_context();
  context.detect_dataset = nullptr;
  context.reads_pipes = false;  // a pipe can be read only once, by agreed_options()
  try {
    return dp::parse_options(arguments, context).comm_timeout_s;
  } catch (const std::exception&) {
    return dp::Communicator::kDefaultTimeout_s;
  }
}

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_streams();
  dp::restart_with_openmp_settings(argv);
  dp::survive_file_size_limit();
  const dp::StopNotice notice;
  const dp::RunStatus status;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto topic = dp::help_topic(arguments)) {
    return dp::print_without_mpi("dptrain",
                                 [&] { return dp::help_text(option_context(), *topic); });
  }
  if (dp::asks_for(arguments, "--version")) {
    return dp::print_without_mpi("dptrain", "dptrain " DP_VERSION "\n" + dp::gpu_needs() + "\n");
  }
  return dp::run_ranks(
      "dptrain", dp::kDptrainNames, argc, argv,
      [&](dp::Communicator& comm) { return run(comm, arguments); }, timeout_of(arguments));
}
