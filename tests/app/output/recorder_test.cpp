// What a recorder writes into the log and on the console, of numbers that the tests make up and of
// exchanges of a reducer that really run. Every rank reports numbers of its own.
#include "app/output/recorder.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "app/output/progress.hpp"
#include "comm/topologies/topology.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "tests/io/log/read_run_log.hpp"
#include "tests/io/temp_folder.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

constexpr std::size_t kWeights = 30, kBiases = 10, kStepsPerEpoch = 3;

std::unique_ptr<const ImageSource> no_images() {
  return std::make_unique<const ImageSet>(
      ImageFacts{.name = "none", .class_names = std::vector<std::string>(10, "class"), .shape = {}},
      std::vector<std::uint8_t>(), std::vector<std::int32_t>());
}

net::Graph small_network() {
  net::Graph graph({.height = 32, .width = 32});
  const net::Value mean = graph.add<net::GlobalAveragePoolLayer>("mean", {}, {graph.images()});
  graph.add<net::LinearLayer>("linear", {.outputs = 10}, {mean});
  return graph;
}

std::vector<Bucket> small_buckets() {
  const TensorSlot tensors[] = {{.offset = 0, .rows = 10, .columns = kWeights / 10},
                                {.offset = kWeights, .rows = kBiases, .columns = 1, .is_1d = true}};
  return plan_buckets(tensors, {.codec = parse_codec_spec("q8"), .min_compress_bytes = 0});
}

// What was printed while a text is captured, on this rank.
struct Printed {
  std::string out, error;
};
template <class F>
Printed printed(F f) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto taken = [] {
    return Printed{testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
  };
  try {
    f();
  } catch (...) {
    static_cast<void>(taken());
    throw;
  }
  return taken();
}

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() : device_(make_device({.tune = false})) {
    options_.model = "small";
    options_.compress = parse_compress("q8");
    options_.epochs = 3;
    options_.batch_size = 4;
    options_.log = folder_ / "log.h5";
  }

  // Collective.
  void start() {
    network_ = std::make_unique<net::Network>(*device_, small_network(), DataType::f32, 3);
    // A pipe or a file, in which no line is rewritten.
    start_text_ = printed([&] {
      RunDescription run = {};
      run.options = &options_;
      run.comm = &comm_;
      run.device = device_.get();
      run.network = network_.get();
      run.bucket_bytes = 4096;
      run.data = &data_;
      run.buckets = small_buckets();
      run.rate_limits = options_.compress.limits;
      run.global_batch = static_cast<std::size_t>(4 * ranks());
      run.steps_per_epoch = kStepsPerEpoch;
      progress_ = make_progress(options_);
      run.progress = progress_.get();
      recorder_ = std::make_unique<Recorder>(run);
      reducer_ = std::make_unique<Reducer>(comm_, network_->parameters().gradients(),
                                           small_buckets(), ReducerOptions{.comm_timeout_s = 30});
      recorder_->attach(*reducer_);
      recorder_->print_start();
    });
  }
  // A real exchange of made-up gradients.
  void exchange() {
    for (float& g : network_->parameters().gradients()) g = 0.01f * static_cast<float>(rank() + 1);
    reducer_->begin_step(steps_done_++);
    for (std::size_t b = 0; b < reducer_->buckets().size(); ++b) reducer_->bucket_ready(b);
    EXPECT_TRUE(reducer_->wait_step().finite);
  }
  // What this rank, or all of them, send in a step: as the topology's formula says.
  [[nodiscard]] double step_bytes() const {
    double sum = 0;
    for (std::size_t b = 0; b < reducer_->buckets().size(); ++b) {
      const auto bytes = reducer_->wire_bytes(b);
      EXPECT_TRUE(bytes.has_value());
      sum += static_cast<double>(bytes.value_or(0));
    }
    return sum;
  }
  [[nodiscard]] double step_bytes_of_all() const {
    const double mine = step_bytes();
    return reducer_->run([&](Communicator& c) { return c.all_sum(mine); });
  }
  // Epoch 1. Rank r computes and waits longer than rank r - 1, and has more samples.
  [[nodiscard]] EpochTally tally() const {
    const double r = rank();
    return {.epoch = 1,
            .steps = kStepsPerEpoch,
            .samples = 100,
            .loss = {.loss = 2.0 * (r + 1), .correct = rank() + 1, .samples = 4 * (rank() + 1)},
            .step_loss = {.loss = 3.0 * (r + 1), .correct = 0, .samples = 2 * (rank() + 1)},
            .times = {.data = 0.5 + r,
                      .forward = 1.0,
                      .backward = 2.0 + r,
                      .exposed_comm = 500.0,  // more than buckets can have been in flight
                      .optimizer = 0.25,
                      .other = 77.0},  // as_parts_of() knows better
            .learning_rate = 0.125,
            .skipped_steps = 2,
            .replica_hash = 77,
            .global_batch = static_cast<std::size_t>(4 * ranks()),
            .steps_of_epoch = kStepsPerEpoch};
  }
  void record_epoch() {
    recorder_->record_epoch(tally(), 1000.0 + rank(), {.loss = 30, .correct = 7, .samples = 20},
                            3.0 + rank());
  }
  [[nodiscard]] ReadTable table(const std::string& name) const {
    return read_table(options_.log, name);
  }
  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int ranks() const { return comm_.size(); }
  [[nodiscard]] bool is_speaker() const { return rank() == 0; }

  // The recorder ends first, then the reducer's thread, then the communicator.
  const TempFolder folder_;
  Options options_;
  Communicator comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<net::Network> network_;
  const Dataset data_ = {.train = no_images(), .test = no_images()};
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<RunSink> progress_;
  std::unique_ptr<Recorder> recorder_;
  Printed start_text_;
  std::uint64_t steps_done_ = 0;
};

const std::vector<std::string> kParts = {"data_s",         "forward_s",   "backward_s",
                                         "exposed_comm_s", "optimizer_s", "other_s"};
double sum_of_parts(const ReadTable& table, std::size_t row) {
  double sum = 0;
  for (const std::string& part : kParts) sum += table.at(row, part);
  return sum;
}

TEST_F(RecorderTest, RanksRowIsWhatTheRankReported) {
  start();
  for (std::size_t s = 0; s < kStepsPerEpoch; ++s) exchange();
  const double bytes = static_cast<double>(kStepsPerEpoch) * step_bytes_of_all();
  record_epoch();
  if (!is_speaker()) {
    EXPECT_FALSE(std::filesystem::exists(options_.log));
    return recorder_->finish();
  }
  const ReadTable rows = table("ranks");
  ASSERT_EQ(rows.rows.size(), static_cast<std::size_t>(ranks()));
  double sent = 0, control = 0;
  for (std::size_t r = 0; r < rows.rows.size(); ++r) {
    const auto number = static_cast<double>(r);
    EXPECT_EQ(rows.at(r, "epoch"), 1.0);
    EXPECT_EQ(rows.at(r, "rank"), number);
    EXPECT_EQ(rows.at(r, "host"), number);
    EXPECT_EQ(rows.at(r, "device"), 0.0);  // the same name on all ranks: one entry
    EXPECT_EQ(rows.at(r, "epoch_s"), 1000.0 + number);
    EXPECT_EQ(rows.at(r, "eval_s"), 3.0 + number);
    EXPECT_EQ(rows.at(r, "data_s"), 0.5 + number);
    EXPECT_EQ(rows.at(r, "forward_s"), 1.0);
    EXPECT_EQ(rows.at(r, "backward_s"), 2.0 + number);
    EXPECT_EQ(rows.at(r, "optimizer_s"), 0.25);
    EXPECT_EQ(rows.at(r, "compute_s"), 3.25 + number);
    // Standing still cannot have been for a bucket that was not in flight.
    EXPECT_EQ(rows.at(r, "exposed_comm_s"), rows.at(r, "comm_s"));
    EXPECT_NEAR(sum_of_parts(rows, r), 1000.0 + number, 1e-9);
    EXPECT_NEAR(rows.at(r, "encode_s") + rows.at(r, "decode_s") + rows.at(r, "peer_wait_s") +
                    rows.at(r, "wire_s"),
                rows.at(r, "comm_s"), 1e-9);
    sent += rows.at(r, "sent_bytes");
    control += rows.at(r, "control_bytes");
  }
  EXPECT_EQ(sent, bytes);
  const ReadTable epochs = table("epochs");
  EXPECT_EQ(epochs.at(0, "sent_bytes"), sent);
  EXPECT_EQ(epochs.at(0, "received_bytes"), sent);
  EXPECT_EQ(epochs.at(0, "control_bytes"), control);
  if (ranks() > 1) {
    EXPECT_GT(control, 0.0);
  }
  recorder_->finish();
}

TEST_F(RecorderTest, EpochsRowIsMeanTimesAndSumsOverRanks) {
  start();
  exchange();
  record_epoch();
  if (is_speaker()) {
    const ReadTable row = table("epochs");
    ASSERT_EQ(row.rows.size(), 1u);
    const double mean_rank = (ranks() - 1) / 2.0;
    EXPECT_EQ(row.at(0, "epoch"), 1.0);
    EXPECT_EQ(row.at(0, "samples"), 100.0);
    EXPECT_EQ(row.at(0, "global_batch"), 4.0 * ranks());
    EXPECT_EQ(row.at(0, "learning_rate"), 0.125);
    EXPECT_DOUBLE_EQ(row.at(0, "train_loss"), 0.5);  // of the samples, however they are shared out
    EXPECT_DOUBLE_EQ(row.at(0, "train_accuracy"), 0.25);
    EXPECT_DOUBLE_EQ(row.at(0, "test_loss"), 1.5);
    EXPECT_DOUBLE_EQ(row.at(0, "test_accuracy"), 0.35);
    EXPECT_DOUBLE_EQ(row.at(0, "epoch_s"), 1000.0 + mean_rank);
    EXPECT_DOUBLE_EQ(row.at(0, "eval_s"), 3.0 + mean_rank);
    EXPECT_DOUBLE_EQ(row.at(0, "data_s"), 0.5 + mean_rank);
    EXPECT_DOUBLE_EQ(row.at(0, "compute_s"), 3.25 + mean_rank);
    EXPECT_NEAR(sum_of_parts(row, 0), 1000.0 + mean_rank, 1e-9);
    EXPECT_EQ(row.at(0, "checkpoint_s"), 0.0);
    EXPECT_EQ(row.at(0, "replica_hash"), 77.0);
    EXPECT_EQ(row.at(0, "skipped_steps"), 2.0);
  }
  recorder_->finish();
}

TEST_F(RecorderTest, StepsThatRanksSkipAloneAddUp) {
  start();
  exchange();
  EpochTally alone = tally();
  alone.is_judged_alone = true;
  alone.skipped_steps = rank() == 0 ? 0 : rank() + 1;
  recorder_->record_epoch(alone, 1000.0, {.loss = 30, .correct = 7, .samples = 20}, 3.0);
  if (is_speaker()) {
    EXPECT_EQ(table("epochs").at(0, "skipped_steps"), (ranks() + 2) * (ranks() - 1) / 2.0);
  }
  recorder_->finish();
}

TEST_F(RecorderTest, BucketsRowsAddUpToTheEpochs) {
  start();
  exchange();
  record_epoch();
  record_epoch();  // without a step since the first one
  if (is_speaker()) {
    const ReadTable rows = table("buckets"), epochs = table("epochs");
    ASSERT_EQ(rows.rows.size(), 4u);
    double sent = 0;
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(rows.at(b, "bucket"), static_cast<double>(b));
      EXPECT_EQ(rows.at(b, "elements"), static_cast<double>(b == 0 ? kWeights : kBiases));
      EXPECT_EQ(rows.at(b, "codec"), static_cast<double>(b));  // both codecs are in codec_names
      EXPECT_EQ(rows.at(b, "topology"), 0.0);
      EXPECT_EQ(rows.at(2 + b, "sent_bytes"), 0.0);
      sent += rows.at(b, "sent_bytes");
    }
    EXPECT_EQ(sent, epochs.at(0, "sent_bytes"));
    EXPECT_EQ(epochs.at(1, "sent_bytes"), 0.0);
    EXPECT_EQ(epochs.at(1, "comm_s"), 0.0);
  }
  recorder_->finish();
}

TEST_F(RecorderTest, WhatWasNotMeasuredIsNotANumber) {
  start();
  recorder_->record_epoch({}, 1.0, {}, 0.0);
  if (is_speaker()) {
    const ReadTable row = table("epochs");
    for (const char* field : {"train_loss", "train_accuracy", "test_loss", "test_accuracy"}) {
      EXPECT_TRUE(std::isnan(row.at(0, field))) << field;
    }
    EXPECT_EQ(row.at(0, "other_s"), 1.0);
  }
  recorder_->finish();
}

TEST_F(RecorderTest, EverySecondStepHasARow) {
  options_.log_steps = 2;
  start();
  for (std::uint64_t step = 0; step < 5; ++step) {
    exchange();
    EXPECT_EQ(recorder_->wants_step(step), step % 2 == 0);
    const auto s = static_cast<double>(step);
    recorder_->record_step(tally(), {.data = 0.5, .forward = 1.0 + s, .exposed_comm = 1e-12}, step);
  }
  const double bytes = step_bytes();
  record_epoch();  // rows of steps may come into the file only now
  if (is_speaker()) {
    const ReadTable rows = table("steps");
    EXPECT_EQ(rows.rows.size(), 3u);
    for (std::size_t row = 0; row < 3; ++row) {
      const auto step = static_cast<double>(2 * row);
      EXPECT_EQ(rows.at(row, "step"), step);
      EXPECT_EQ(rows.at(row, "epoch"), 1.0);
      EXPECT_DOUBLE_EQ(rows.at(row, "train_loss"), 1.5);  // over all ranks' samples of the step
      EXPECT_EQ(rows.at(row, "learning_rate"), 0.125);
      EXPECT_EQ(rows.at(row, "forward_s"), 1.0 + step);
      EXPECT_EQ(rows.at(row, "compute_s"), 1.0 + step);
      EXPECT_NEAR(sum_of_parts(rows, row), rows.at(row, "step_s"), 1e-12);
      // This step's alone, though the one before has no row.
      EXPECT_EQ(rows.at(row, "sent_bytes"), bytes);
    }
  }
  const double all = 5.0 * step_bytes_of_all();
  // Rows of steps take nothing away from the epoch.
  if (is_speaker()) {
    EXPECT_EQ(table("epochs").at(0, "sent_bytes"), all);
  }
  recorder_->finish();
}

// A gathering takes latencies of the link, so rows of short steps are gathered about once a second.
TEST_F(RecorderTest, RowsOfShortStepsAreGatheredTogether) {
  options_.log_steps = 1;
  start();
  const auto gathered_bytes = [&] {
    return reducer_->run([](Communicator& comm) { return comm.control_bytes(); });
  };
  const auto step = [&](std::uint64_t number) {
    EpochTally now = tally();
    now.step_loss = {.loss = static_cast<double>(number), .correct = 0, .samples = 1};
    exchange();
    recorder_->record_step(now, {.forward = 0.02}, number);
  };
  step(0);
  const std::uint64_t first = gathered_bytes();
  for (std::uint64_t number = 1; number < 50; ++number) step(number);
  EXPECT_EQ(gathered_bytes(), first) << "49 rows are kept";
  step(50);
  const std::uint64_t second = gathered_bytes();
  EXPECT_EQ(second > first, ranks() > 1);
  step(51);
  recorder_->gather_steps();  // as before a checkpoint
  EXPECT_EQ(gathered_bytes() > second, ranks() > 1);
  step(52);
  record_epoch();
  if (is_speaker()) {
    const ReadTable rows = table("steps");
    ASSERT_EQ(rows.rows.size(), 53u);
    for (std::size_t row = 0; row < 53; ++row) {
      EXPECT_EQ(rows.at(row, "step"), static_cast<double>(row));
      EXPECT_EQ(rows.at(row, "train_loss"), static_cast<double>(row));
      // Each row has its own step's, though they are taken when the next one is over.
      EXPECT_EQ(rows.at(row, "sent_bytes"), step_bytes());
    }
  }
  recorder_->finish();
}

// The texts are run_warnings_test.cpp's.
TEST_F(RecorderTest, StepsWarnOfTheRate) {
  options_.compress = parse_compress("auto");
  start();
  exchange();
  EpochTally now = tally();
  now.rate.wished_bits = now.rate.hidden_bits = 0.03;
  now.rate.guard_factor = 1.5;
  now.has_exchanged = true;
  const std::string text = printed([&] {
                             for (int i = 0; i < 20; ++i) {
                               recorder_->record_step(now, {}, ++steps_done_);
                             }
                           }).error;
  EXPECT_EQ(text, is_speaker()
                      ? "dptrain: epoch 2: " + guard_at_work(now.rate, {}) +
                            "\ndptrain: epoch 2: " + floor_clash(now.rate, RateLimits(), {}) + "\n"
                      : "");
}

// A log that cannot be written does not end the run: rank 0 says so once, whatever fails next,
// tries again with each epoch, and tells at the end what is missing.
TEST_F(RecorderTest, LogThatCannotBeWrittenIsToldOnceAndTriedAgain) {
  start();
  const std::string folder = std::filesystem::path(options_.log).parent_path().string();
  const auto because = [&](const std::string& reason) {
    return "--log " + options_.log + ": cannot be written: " + reason;
  };
  const auto record = [&] {
    Printed said;
    said = printed([&] { record_epoch(); });
    return said.error;
  };
  if (is_speaker()) std::filesystem::rename(folder, folder + "-gone");
  const std::string first = record();
  if (is_speaker()) std::ofstream(folder).close();
  const std::string second = record();
  if (is_speaker()) {
    EXPECT_EQ(first, "dptrain: " + because("No such file or directory") +
                         "; training goes on, and the next epoch tries again\n");
    EXPECT_EQ(second, "");
    EXPECT_EQ(recorder_->missing_files(),
              "the training is complete, but some files are not: the log is missing (" +
                  because("Not a directory") + ")");
    std::filesystem::remove(folder);
    std::filesystem::rename(folder + "-gone", folder);
  }
  const std::string third = record();
  if (is_speaker()) {
    EXPECT_EQ(third, "dptrain: the log " + options_.log + " is whole again\n");
    EXPECT_EQ(table("epochs").rows.size(), 3u);
    EXPECT_EQ(recorder_->missing_files(), "");
    std::filesystem::rename(folder, folder + "-gone");
  }
  record();
  const Printed last = printed([&] { recorder_->finish(); });
  if (is_speaker()) {
    EXPECT_EQ(last.error, "");  // it was told; missing_files() has the end of it
    EXPECT_EQ(last.out.find("The log is"), std::string::npos);
    std::filesystem::rename(folder + "-gone", folder);
    EXPECT_EQ(table("epochs").rows.size(), 3u);
  }
}

TEST_F(RecorderTest, LogIsFinishedAtTheEndAlone) {
  start();
  record_epoch();
  const auto finished = [&] { return read_numbers(options_.log, "finished"); };
  if (is_speaker()) {
    EXPECT_EQ(finished(), std::vector<double>{0});
  }
  recorder_->finish();
  if (is_speaker()) {
    EXPECT_EQ(finished(), std::vector<double>{1});
  }
}

TEST_F(RecorderTest, LinkIsWhatItsMakerSays) {
  for (const auto& [name, value] : {std::pair{"BIT_PER_S", "100000000"},
                                    std::pair{"DELAY_S", "0.005"}, std::pair{"LOSS", "0.1 %"}}) {
    ::setenv((std::string("DPTRAIN_LINK_") + name).c_str(), value, 1);
  }
  start();
  if (is_speaker()) {
    EXPECT_EQ(read_numbers(options_.log, "nominal_bit_per_s"), std::vector<double>{1e8});
    EXPECT_EQ(read_numbers(options_.log, "nominal_delay_s"), std::vector<double>{0.005});
    EXPECT_TRUE(read_numbers(options_.log, "nominal_loss").empty()) << "this is no number";
    EXPECT_TRUE(read_numbers(options_.log, "nominal_is_shared").empty()) << "nobody said so";
    const auto hops = static_cast<double>(
        find_topology("ring").hops(static_cast<std::size_t>(ranks()), reducer_->hosts()));
    EXPECT_EQ(read_numbers(options_.log, "topology_hops"), std::vector<double>{hops});
  }
  recorder_->finish();
  for (const char* name : {"BIT_PER_S", "DELAY_S", "LOSS"}) {
    ::unsetenv((std::string("DPTRAIN_LINK_") + name).c_str());
  }
}

TEST_F(RecorderTest, ThrottleIsTheNominalRate) {
  options_.throttle = parse_bit_rate("--throttle", "10mbit");
  start();
  if (is_speaker()) {
    EXPECT_EQ(read_numbers(options_.log, "nominal_bit_per_s"), std::vector<double>{1e7});
  }
  recorder_->finish();
}

TEST_F(RecorderTest, RankZeroAloneSpeaks) {
  start();
  for (std::size_t s = 0; s < kStepsPerEpoch; ++s) exchange();
  const Printed epoch = printed([&] { record_epoch(); });
  const Printed warned = printed([&] {
    recorder_->say("a line");
    recorder_->note_skipped_step(12, "the gradient", true);
    recorder_->note_missing("the trace", "t.json cannot be written");
  });
  const Printed end = printed([&] { recorder_->finish(); });
  const double share = 100.0 * static_cast<double>(kStepsPerEpoch) * step_bytes_of_all() /
                       (2.0 * (ranks() - 1) * 4.0 * (kWeights + kBiases) * kStepsPerEpoch);
  if (!is_speaker()) {
    for (const Printed& text : {start_text_, epoch, warned, end}) {
      EXPECT_EQ(text.out + text.error, "");
    }
    return;
  }
  const auto expect_in = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  };
  expect_in(start_text_.out, "small on cifar10");
  expect_in(start_text_.out, ranks() == 1 ? ", 1 rank, no gradients to exchange" : " ranks, ");
  if (ranks() > 1) {
    expect_in(start_text_.out, "gradients compressed by q8");
    expect_in(start_text_.out, "rank 0 sends a step");
  }
  expect_in(epoch.out, "epoch 2/3");
  expect_in(epoch.out, "0.5000");
  expect_in(epoch.out, "25.0 %");
  expect_in(epoch.out, "35.0 %");
  EXPECT_EQ(epoch.error, "");
  EXPECT_EQ(warned.out, "a line\n");
  expect_in(warned.error, "step 12: the gradient is not finite");
  expect_in(warned.error, "t.json cannot be written; training goes on without it");
  expect_in(end.out, "what each epoch cost");
  if (ranks() > 1) expect_in(end.out, format_percent(share / 100.0));
  expect_in(end.out, "The log is " + options_.log + "\n");
  expect_in(recorder_->missing_files(), "the trace is missing (t.json cannot be written)");
}

TEST_F(RecorderTest, QuietRunsWarnAlone) {
  options_.quiet = true;
  start();
  const Printed text = printed([&] {
    recorder_->say("a line");
    record_epoch();
    recorder_->note_skipped_step(3, "the gradient", true);
    recorder_->finish();
  });
  EXPECT_EQ(start_text_.out + text.out, "");
  EXPECT_EQ(text.error.empty(), !is_speaker());
}

TEST_F(RecorderTest, WithoutALogThereIsNoFile) {
  options_.log = "none";
  options_.log_steps = 1;
  start();
  const Printed text = printed([&] {
    exchange();
    recorder_->record_step(tally(), {.forward = 1.0}, 0);
    record_epoch();
    recorder_->finish();
  });
  EXPECT_EQ(text.out.find("The log is"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_FALSE(std::filesystem::exists("none"));
}

// On rank 0 alone something fails, and all ranks are told.
TEST_F(RecorderTest, RowsOfADamagedCheckpointAreRefused) {
  start();
  StateList state;
  recorder_->list_state(state);
  int texts = 0;
  for (const StateText& text : state.texts) {
    if (!text.name.starts_with("epochs/")) continue;
    ++texts;
    const std::string good = text.get();
    for (const std::size_t bytes : {1u, 9u, 1001u}) {
      try {
        text.set(std::string(bytes, 'x'));
        ADD_FAILURE() << text.name << " takes " << bytes << " bytes";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::data);
        EXPECT_NE(std::string(error.what()).find(text.name), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(text.get(), good);  // as it was
    text.set(good);
  }
  EXPECT_EQ(texts, 2);
}

TEST_F(RecorderTest, LogThatCannotBeMadeEndsAllRanks) {
  options_.log = folder_ / "missing/log.h5";
  try {
    start();
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("missing/log.h5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace dp
