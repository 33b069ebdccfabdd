// Reports a run: rank 0 tells its progress and writes the run log from what all ranks have
// measured.
//
// All ranks have a Recorder and call the same methods. Those marked "collective" gather numbers
// through the reducer's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/checkpoint/resume.hpp"
#include "app/options/options.hpp"
#include "app/output/exchange_window.hpp"
#include "app/output/progress.hpp"
#include "app/output/times.hpp"
#include "app/process/process.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/network/link_probe.hpp"
#include "comm/network/step_simulation.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/reducer/delivery_gaps.hpp"
#include "comm/reducer/reducer.hpp"
#include "io/files/event_file.hpp"
#include "io/images/dataset.hpp"
#include "io/log/run_log.hpp"
#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "net/network.hpp"

namespace dp {

// What a run consists of; everything referred to outlives the recorder.
struct RunDescription {
  const Options* options;
  Communicator* comm;
  CpuShare share;
  Device* device;
  std::string why_no_gpu;  // if --device auto has found no usable GPU
  net::Network* network;
  std::string exchange_path;          // "device" or "host"; empty without a GPU
  bool cpu_sends_velocities = false;  // whether --compress auto would, on a CPU
  std::size_t ranks_on_gpu = 1;       // of this host, on this rank's GPU
  LinkProbe link;                     // zeros if it was not measured
  std::size_t bucket_bytes;
  const Dataset* data;
  std::uint64_t data_hash;
  std::vector<Bucket> buckets;
  std::size_t global_batch, steps_per_epoch;
  const ResumePoint* resume = nullptr;  // where the run goes on, until the recorder exists
  Progress* progress = nullptr;         // rank 0 tells it what happens

  [[nodiscard]] std::string topology_of(const Bucket& bucket) const {
    return bucket.topology.empty() ? options->topology : bucket.topology;
  }
};

// The running epoch on this rank.
struct EpochTally {
  std::size_t epoch = 0;
  std::size_t steps = 0;
  std::int64_t samples = 0;  // of all ranks
  LossSums loss = {};        // of this rank, without the steps that were skipped
  LossSums step_loss = {};   // of the rank's last step
  LoopTimes times = {};
  double checkpoint_s = 0;   // for which checkpoints have held training up
  double earlier_s = 0;      // what the epoch took before the run was resumed
  double learning_rate = 0;  // of the last step
  RateReport rate = {};      // of the last step
  // The sum of the bits over the steps whose codec had a rate, and how many steps these were.
  double bits_sum = 0;
  std::int64_t rated_steps = 0;
  std::int64_t skipped_steps = 0;      // by all ranks together, or by this one alone
  std::int64_t own_skipped_steps = 0;  // of them, those of gradients of this rank alone
  bool is_judged_alone = false;        // each rank skips its own steps
  ExchangeWindow window = {};          // in which an exchange keeps nobody waiting
  bool has_exchanged = false;          // in the last step, or after it
  bool is_under_way = false;           // an exchange, after the last step
  std::int64_t exchanges = 0;
  std::uint64_t replica_hash = 0;
  std::size_t global_batch = 0, steps_of_epoch = 0;
  std::vector<DeliveryGaps::Gap> gaps = {};  // when the epoch is over

  // NaN without a rate.
  [[nodiscard]] double bits_per_value() const {
    return rated_steps == 0 ? RateReport::kNothing : bits_sum / static_cast<double>(rated_steps);
  }
  // judged: whether all ranks skip the same steps.
  void list_state(StateVisitor& visitor, StateShare judged = StateShare::replicated);
};

// Sums over all ranks.
struct EvaluationResult {
  double loss = 0;
  std::int64_t correct = 0, samples = 0;
  std::int64_t stop_wishes = 0;  // ranks that wish to stop after this evaluation

  [[nodiscard]] double mean_loss() const { return loss / static_cast<double>(samples); }
  [[nodiscard]] double accuracy() const {
    return static_cast<double>(correct) / static_cast<double>(samples);
  }
};

// What is said of a codec with a rate: the link carries less than the least; the guard sends more.
// Empty where it is not so.
[[nodiscard]] std::string floor_clash(const RateReport& rate, const RateLimits& limits,
                                      const std::vector<Bucket>& buckets,
                                      const ExchangeWindow& window = {});
[[nodiscard]] std::string guard_at_work(const RateReport& rate, const std::vector<Bucket>& buckets);

class Recorder {
 public:
  // Among the missing files.
  static constexpr const char* kLogName = "the log";
  static constexpr const char* kEventsName = "a part of the events for TensorBoard";

  // Collective. Rank 0 creates the log, unless it is "none". Only a run that does not go on is
  // refused if files cannot be made: it throws what RunLog::create throws.
  explicit Recorder(RunDescription run);

  // From now on numbers are gathered through this reducer.
  void attach(Reducer& reducer);

  // The table of all settings in effect.
  void print_start();
  // Rank 0 prints and logs what the run's steps are expected to take (app/planning/prediction.hpp).
  // bits: a value, of codecs with bits=; else NaN.
  void record_prediction(const StepForecast& forecast, double bits);
  // Whether the log gets a row after that many steps of the run.
  [[nodiscard]] bool wants_step(std::uint64_t global_step) const {
    const auto every = static_cast<std::uint64_t>(run_.options->log_steps);
    return every > 0 && global_step % every == 0;
  }
  // Collective if --log-steps asks for a row; `times` are then that step's. What its exchange cost
  // is taken in the next call. Rows are kept and gathered about once a second, or less often where
  // a gathering takes more than 10 ms, because training stands still for several latencies of the
  // link; and not while an exchange is under way, which it would wait for.
  void record_step(const EpochTally& tally, const LoopTimes& times, std::uint64_t global_step);
  // Collective. Afterwards no row is kept.
  void gather_steps();
  // `where` says whose gradient was not finite. Otherwise than all ranks together, a rank skips its
  // own step.
  void note_skipped_step(std::uint64_t global_step, const std::string& where, bool is_of_all);
  // The same of a round, which all ranks undo.
  void note_lost_round(std::uint64_t global_step, const std::string& where);
  // Rank 0 logs the steps between two exchanges that were chosen for each epoch so far.
  void record_round_steps(const std::string& steps) {
    if (is_speaker() && log_) log_->set_attribute("/", "round_steps", steps);
  }
  // Rank 0 tells the result of an evaluation that belongs to no epoch.
  void say_evaluation(const EvaluationResult& result);
  // Rank 0 prints and logs the result with test-time augmentation, which stands beside the others.
  void record_test_augmentation(const EvaluationResult& result);
  // Rank 0 tells the line.
  void say(const std::string& line);
  // Rank 0 tells that the checkpoint of that step is complete.
  void say_checkpoint(std::uint64_t step, const std::string& folder);
  // Rank 0 warns of images that were replaced: once of each, and of the first few by name.
  void note_images(const std::vector<std::string>& notes);
  // A file of the run cannot be written. Rank 0 warns now, unless the file is missing already, be
  // it for another reason. The file counts as missing unless it can be written later.
  void note_missing(const std::string& what, const std::string& why,
                    const std::string& outlook = "training goes on without it");
  // Rank 0: the line is part of missing_files().
  void note_at_end(const std::string& line) { missing_[line] = ""; }
  void note_written(const std::string& what) { missing_.erase(what); }
  // Rank 0 prints the line, if it has not done so yet.
  void warn_once(const std::string& line);
  // Rank 0: a sentence about the files that are missing, for the end; empty if there is none.
  [[nodiscard]] std::string missing_files() const;
  // Collective. Times are seconds.
  void record_epoch(const EpochTally& tally, double epoch_s, const EvaluationResult& result,
                    double eval_s);
  // Between steps: what the running epoch has cost so far, and the rows of the epochs before.
  void list_state(StateVisitor& visitor);
  // Writes these rows into a log that is not the earlier start's, which is lost.
  void put_back_epochs();
  // The log with all rows so far, for a checkpoint, whose head then names it; empty where there is
  // none.
  [[nodiscard]] std::vector<std::byte> log_image(CheckpointHead& head) const;
  // Prints the closing table and closes the log, which a run that was stopped leaves unfinished.
  void finish(bool is_complete = true);

 private:
  // One rank's part of an epoch, in the form in which it is gathered.
  struct RankRecord {
    LoopTimes loop;
    double epoch_s, eval_s, checkpoint_s;
    CommCost comm;
    LossSums loss;
    std::uint64_t control_bytes;
    std::int64_t skipped_steps, own_skipped_steps;
  };

  [[nodiscard]] bool is_speaker() const { return run_.comm->rank() == 0; }
  void count_control_bytes(std::uint64_t now);
  void share_epoch();
  void take_earlier_lists();
  [[nodiscard]] RunLog make_log(RunInfo& info);
  // Gives a file of that name another one, and says so.
  void keep_earlier_log(const std::string& path);
  // These are in recorder_log.cpp and for rank 0 only.
  void open_log();
  // Puts what is new in the log on the disk. If that fails, training goes on, and the next call
  // tries again. A value closes the log, as that of a finished run or of one that was stopped.
  void save_log(std::optional<bool> is_finished = std::nullopt);
  void note_log_failure(const std::string& why);
  void note_log_saved();
  [[nodiscard]] std::string missing_part_of_log() const;
  void write_nominal_link();
  // These are in recorder_events.cpp and for rank 0 only. Events are written as the log is.
  void open_events();
  void add_events(const StepRow& row);
  void add_events(const EpochEnd& epoch);
  void save_events();
  // Adds what the reducer has measured since the last call to epoch_comm_.
  void collect_comm();
  void add_comm(const CommTimes& times);
  // Takes what the reducer was asked for after the last step, which waits if that step's exchange
  // still forwards sums. A row of the log that begins with record_step() ends with it.
  void end_step_row();
  [[nodiscard]] static TimesAndBytes times_of(const RankRecord& record);
  void write_epoch(const EpochTally& tally, const EvaluationResult& result,
                   const std::vector<RankRecord>& ranks, const std::vector<CommCost>& buckets);
  void write_buckets(std::int64_t epoch, const std::vector<CommCost>& of_all_ranks);
  void write_tensors(const EpochTally& tally);
  void warn(const std::string& text) { run_.progress->warn(text); }
  // These are in recorder_progress.cpp and recorder_notes.cpp, for rank 0 only.
  void tell_live_step(const EpochTally& tally);
  void tell_epoch(const EpochRow& row, const EpochTally& tally);
  void tell_end();
  [[nodiscard]] double fp32_bytes(double steps) const;
  void note_rate(const EpochTally& tally);
  void note_guard(const EpochTally& tally);
  void note_loss(const EpochRow& row);
  void note_skipped_by_others(const EpochTally& tally, const std::vector<RankRecord>& ranks);

  RunDescription run_;
  Reducer* reducer_ = nullptr;
  std::optional<RunLog> log_;
  std::optional<EventFile> events_;
  std::uint64_t steps_done_ = 0;        // of the run
  std::vector<std::string> log_hosts_;  // of this session from first_host_ on, by rank
  std::size_t first_host_ = 0;
  std::vector<std::string> devices_;  // each once
  std::vector<std::size_t> device_of_rank_;
  std::vector<std::string> codec_names_;
  std::vector<std::string> topology_names_;
  // By bucket, the bytes that this rank sends in a step; nothing if they depend on the values.
  std::vector<std::optional<std::uint64_t>> expected_bytes_;
  CommTimes epoch_comm_;
  // What a communicator has counted is that of the set-up, of earlier epochs, or in
  // control_bytes_, which has the epoch's so far.
  std::uint64_t counted_control_bytes_ = 0, control_bytes_ = 0;
  std::map<std::string, std::string> missing_;  // what the run could not write, and why
  std::set<std::string> warnings_;              // of warn_once()
  std::int64_t first_epoch_ = 0;                // of this start
  std::optional<std::int64_t> logged_epochs_;   // on the disk; nothing if none was saved yet
  std::set<std::string> replaced_images_;       // what note_images() was told
  bool has_skipped_ = false, has_exploded_ = false,
       has_met_floor_ = false,  // it was said what to try
      has_seen_guard_ = false;
  std::optional<RateLimits> limits_;  // of auto
  int clashes_ = 0;                   // with the floor, of exchanges in a row
  double least_loss_ = std::numeric_limits<double>::infinity();
  // Rows of steps that have no sums over the ranks yet, and this rank's part of these: the loss and
  // the samples of each.
  std::vector<StepRow> step_rows_;
  std::vector<double> step_sums_;
  std::size_t rows_at_once_ = 1;
  double gathering_s_ = 0.0;  // what the last gathering of rows took
  // The row of the last step, and whether the reducer owes its costs: the next step begins before
  // they are known.
  bool has_asked_ = false;
  std::optional<StepRow> begun_row_;
  LoopTimes begun_times_;
  std::vector<EpochRow> epochs_;
  std::vector<double> epoch_steps_;  // of each
};

}  // namespace dp
