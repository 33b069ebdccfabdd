// dptrain's code writes a log; HDF5's C interface and h5py read it.
#include "io/log/run_log.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "io/files/hdf5.hpp"
#include "kernels/base/error.hpp"
#include "tests/io/log/example_run_log.hpp"
#include "tests/io/log/read_run_log.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

// The columns as the log's specification names them.
const std::string kTimes =
    "epoch_s data_s forward_s backward_s optimizer_s compute_s encode_s wire_s decode_s "
    "peer_wait_s comm_s exposed_comm_s other_s eval_s checkpoint_s sent_bytes received_bytes";
const std::string kEpochFields =
    "epoch samples global_batch learning_rate train_loss train_accuracy test_loss test_accuracy " +
    kTimes +
    " codec_relative_error residual_norm replica_hash skipped_steps delivered_relative_error "
    "sample_bytes saturation control_bytes statistics_s statistics_bytes exchanges wire_bytes";
const std::string kRankFields =
    "epoch rank host device " + kTimes + " control_bytes statistics_s statistics_bytes wire_bytes";
const std::string kBucketFields =
    "epoch bucket elements codec topology sent_bytes encode_s wire_s decode_s peer_wait_s "
    "relative_error residual_norm delivered_relative_error saturation residual_growth residual_age";
const std::string kSessionFields = "start first_epoch first_step world_size";
const std::string kTensorFields = "epoch tensor elements waiting longest_wait";
const std::string kShareFields = "step rank images compute_s step_s fixed_s image_s";
const std::string kStepFields =
    "step epoch train_loss step_s compute_s comm_s exposed_comm_s learning_rate data_s forward_s "
    "backward_s optimizer_s other_s encode_s wire_s decode_s peer_wait_s sent_bytes received_bytes "
    "planned_bits partial_bits total_bits partial_step total_step link_bytes_per_s hidden_bits "
    "relative_error residual_growth guard_factor exchanged wished_bits binding_bucket";

// The output of tests/io/read_log.py for a file; used only if Python has h5py.
bool has_h5py() { return std::system(DP_PYTHON " -c 'import h5py' 2>/dev/null") == 0; }
std::string read_with_h5py(const std::string& path) {
  const std::string command = std::string(DP_PYTHON) + " '" DP_READ_LOG "' '" + path + "' 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4'096> part;
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    text.append(part.data(), n);
  }
  EXPECT_EQ(::pclose(pipe), 0) << text;
  return text;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(RunLog, ColumnsAreTheSpecifications) {
  const TempFolder folder;
  RunLog log = RunLog::create(folder / "log.h5", example_info());
  log.close(true);
  EXPECT_EQ(read_table(folder / "log.h5", "epochs").fields, kEpochFields);
  EXPECT_EQ(read_table(folder / "log.h5", "ranks").fields, kRankFields);
  EXPECT_EQ(read_table(folder / "log.h5", "buckets").fields, kBucketFields);
  EXPECT_EQ(read_table(folder / "log.h5", "sessions").fields, kSessionFields);
  EXPECT_EQ(read_table(folder / "log.h5", "tensors").fields, kTensorFields);
  EXPECT_EQ(read_table(folder / "log.h5", "shares").fields, kShareFields);
  EXPECT_EQ(read_table(folder / "log.h5", "steps").fields, kStepFields);
}

TEST(RunLog, AnEpochHasMeanTimesAndSumsOfBytes) {
  const TimesAndBytes first = example_times(10), second = example_times(20);
  const TimesAndBytes both = over_ranks(std::array{first, second});
  using T = TimesAndBytes;
  for (double T::*time :
       {&T::epoch_s, &T::data_s, &T::forward_s, &T::backward_s, &T::optimizer_s, &T::compute_s,
        &T::encode_s, &T::wire_s, &T::decode_s, &T::peer_wait_s, &T::comm_s, &T::exposed_comm_s,
        &T::other_s, &T::eval_s, &T::checkpoint_s, &T::statistics_s}) {
    EXPECT_EQ(both.*time, (first.*time + second.*time) / 2);
  }
  for (std::int64_t T::*bytes :
       {&T::sent_bytes, &T::received_bytes, &T::control_bytes, &T::statistics_bytes}) {
    EXPECT_EQ(both.*bytes, first.*bytes + second.*bytes);
  }
}

TEST(RunLog, EveryValueIsInItsColumn) {
  const TempFolder folder;
  RunLog log = RunLog::create(folder / "log.h5", example_info());
  log.append(example_epoch(1));
  log.append(example_epoch(2));
  const std::vector<RankRow> ranks{
      {.epoch = 1, .rank = 0, .host = 0, .device = 0, .times = example_times(10)},
      {.epoch = 1, .rank = 1, .host = 1, .device = 0, .times = example_times(20)}};
  log.append(std::span(ranks));
  log.append(BucketRow{.epoch = 1,
                       .bucket = 2,
                       .elements = 3,
                       .codec = 1,
                       .topology = 0,
                       .sent_bytes = 4,
                       .encode_s = 5,
                       .wire_s = 6,
                       .decode_s = 7,
                       .peer_wait_s = 8,
                       .relative_error = 9,
                       .residual_norm = 10,
                       .delivered_relative_error = 11,
                       .saturation = 12,
                       .residual_growth = 13,
                       .residual_age = 14});
  log.append(StepRow{.step = 7,
                     .epoch = 1,
                     .train_loss = 2.5,
                     .step_s = 3,
                     .compute_s = 4,
                     .wished_bits = 0.25,
                     .binding_bucket = 5});
  log.append(TensorRow{.epoch = 1, .tensor = 2, .elements = 3, .waiting = 4, .longest_wait = 5});
  log.append(ShareRow{.step = 9,
                      .rank = 1,
                      .images = 40,
                      .compute_s = 0.5,
                      .step_s = 0.75,
                      .fixed_s = 0.25,
                      .image_s = 0.125});
  log.append(std::span<const RankRow>());
  log.save();

  const ReadTable epochs = read_table(folder / "log.h5", "epochs");
  ASSERT_EQ(epochs.rows.size(), 2u);
  const std::vector<double>& row = epochs.rows[1];
  const std::vector<double> head{2, 12'800, 128, 0.125, 2'001, 0.25, 2'002};
  EXPECT_EQ(std::vector<double>(row.begin(), row.begin() + 7), head);
  EXPECT_NE(row[7], row[7]);  // test_accuracy was not measured
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(row[8 + i], 2'100.5 + 0.5 * double(i));
  EXPECT_EQ(row[23], 5'000'002'100.0);
  EXPECT_EQ(row[24], 6'000'002'100.0);
  EXPECT_NE(row[25], row[25]);
  EXPECT_EQ(row[26], 2'003);
  EXPECT_EQ(row[27], static_cast<double>(0xFEDCBA9876543210u));
  EXPECT_EQ(row[28], 4);
  EXPECT_EQ(row[29], 0.5);
  EXPECT_EQ(row[31], 0.25);
  EXPECT_EQ(row[30], 7);

  const ReadTable read_ranks = read_table(folder / "log.h5", "ranks");
  ASSERT_EQ(read_ranks.rows.size(), 2u);
  EXPECT_EQ(read_ranks.rows[1][1], 1);
  EXPECT_EQ(read_ranks.rows[1][2], 1);
  EXPECT_EQ(read_ranks.rows[1][4], 20.5);
  EXPECT_EQ(read_ranks.rows[1][20], 6'000'000'020.0);
  EXPECT_EQ(
      read_table(folder / "log.h5", "buckets").rows,
      (std::vector<std::vector<double>>{{1, 2, 3, 1, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}}));
  EXPECT_EQ(read_table(folder / "log.h5", "tensors").rows,
            (std::vector<std::vector<double>>{{1, 2, 3, 4, 5}}));
  EXPECT_EQ(read_table(folder / "log.h5", "shares").rows,
            (std::vector<std::vector<double>>{{9, 1, 40, 0.5, 0.75, 0.25, 0.125}}));
  const std::vector<double> step = read_table(folder / "log.h5", "steps").rows.at(0);
  EXPECT_EQ(std::vector<double>(step.begin(), step.begin() + 6),
            (std::vector<double>{7, 1, 2.5, 3, 4, 0}));
  EXPECT_EQ(step.at(step.size() - 2), 0.25);
  EXPECT_EQ(step.back(), 5);
  EXPECT_EQ(read_table(folder / "log.h5", "sessions").rows,
            (std::vector<std::vector<double>>{{1'700'000'000.25, 0, 0, 2}}));
}

TEST(RunLog, MoreRowsThanAChunk) {
  const TempFolder folder;
  RunLog log = RunLog::create(folder / "log.h5", example_info());
  std::vector<RankRow> rows(700);
  for (int batch = 0; batch < 3; ++batch) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].rank = batch * 700 + std::int64_t(i);
    log.append(std::span<const RankRow>(rows));
  }
  log.close(true);
  const ReadTable table = read_table(folder / "log.h5", "ranks");
  ASSERT_EQ(table.rows.size(), 2'100u);
  for (std::size_t i = 0; i < 2'100; ++i) ASSERT_EQ(table.rows[i][1], double(i));
}

TEST(RunLog, H5pyReadsItWhileItIsWritten) {
  if (!has_h5py()) GTEST_SKIP() << DP_PYTHON << " has no h5py (python3-h5py)";
  const TempFolder folder;
  RunLog log = RunLog::create(folder / "log.h5", example_info());
  log.append(example_epoch(1));
  log.append(example_epoch(2));
  log.set_attribute("/model", "tuning", std::vector<std::string>{"conv1: direct", "fc: gemm"});
  log.save();
  const std::string text = read_with_h5py(folder / "log.h5");
  expect_contains(text, R"("format_version": 1)");
  expect_contains(text, R"("finished": 0)");
  expect_contains(text, R"("started_at": "2023-11-14T22:13:20Z")");
  expect_contains(text, R"("hosts": ["alpha", "bêta"])");
  expect_contains(text, R"("codec_names": ["none", "q8"])");
  expect_contains(text, R"("topology_names": ["ring"])");
  expect_contains(text, "Übung/日本");
  expect_contains(text, R"("config": {"data-dir": "", "lr": "0.1", "model": "resnet20"})");
  expect_contains(text, R"("parameters": 272474)");
  expect_contains(text, R"("tuning": ["conv1: direct", "fc: gemm"])");
  expect_contains(text, R"("chunks": [1024])");
  expect_contains(text, R"([2, 12800, 128, 0.125, 2001.0, 0.25, 2002.0, null, 2100.5, 2101.0, )");
  expect_contains(
      text,
      R"(5000002100, 6000002100, null, 2003.0, 18364758544493064720, 4, 0.5, 7, 0.25, 9, 0.125, 11, )"
      R"(13, 15.0]])");
  expect_contains(text, R"("units": ["s", "1", "1", "1"])");
  expect_contains(
      text,
      R"("byte", "byte", "1", "1", "1", "1", "1", "byte", "1", "byte", "s", "byte", "1", "byte"])");

  log.append(example_epoch(3));
  log.save();
  EXPECT_EQ(read_table(folder / "log.h5", "epochs").rows.size(), 3u);
  log.close(true);
  expect_contains(read_with_h5py(folder / "log.h5"), R"("finished": 1)");
}

TEST(RunLog, EveryRowIsThereAfterKill) {
  const TempFolder folder;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::close(pipe_ends[0]);
    RunLog log = RunLog::create(folder / "log.h5", example_info());
    for (std::int64_t epoch = 1; epoch <= 50; ++epoch) {
      log.append(example_epoch(epoch));
      log.save();
    }
    const char done = 1;
    static_cast<void>(!::write(pipe_ends[1], &done, 1));
    while (true) ::pause();
  }
  ::close(pipe_ends[1]);
  char done = 0;
  EXPECT_EQ(::read(pipe_ends[0], &done, 1), 1);
  ASSERT_EQ(::kill(writer, SIGKILL), 0);
  ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
  ::close(pipe_ends[0]);

  const ReadTable epochs = read_table(folder / "log.h5", "epochs");
  ASSERT_EQ(epochs.rows.size(), 50u);
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(epochs.rows[i][0], double(i + 1));
    EXPECT_EQ(epochs.rows[i][24], 6'000'000'100.0 + 1'000 * double(i + 1));
  }
  if (has_h5py()) expect_contains(read_with_h5py(folder / "log.h5"), R"("finished": 0)");
}

TEST(RunLog, WithoutCloseItStaysUnfinished) {
  const TempFolder folder;
  {
    RunLog log = RunLog::create(folder / "log.h5", example_info());
    log.append(example_epoch(1));
    RunLog moved = std::move(log);
    moved.append(example_epoch(2));
  }
  EXPECT_EQ(read_table(folder / "log.h5", "epochs").rows.size(), 2u);
  if (has_h5py()) expect_contains(read_with_h5py(folder / "log.h5"), R"("finished": 0)");
}

TEST(RunLog, NoStepsUnlessAsked) {
  const TempFolder folder;
  RunInfo info = example_info();
  info.has_steps = false;
  RunLog log = RunLog::create(folder / "log.h5", info);
  EXPECT_THROW(log.append(StepRow{}), Error);
  log.close(true);
  EXPECT_THROW(log.append(example_epoch(1)), Error);
  prepare_hdf5();
  const hid_t file = H5Fopen((folder / "log.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_EQ(H5Lexists(file, "steps", H5P_DEFAULT), 0);
  EXPECT_GT(H5Lexists(file, "epochs", H5P_DEFAULT), 0);
  H5Fclose(file);
}

TEST(RunLogErrors, AnExistingFileIsLeftAlone) {
  const TempFolder folder;
  folder.write("log.h5", {1, 2, 3});
  for (const std::string& message :
       {failure([&] { const RunLog log = RunLog::create(folder / "log.h5", example_info()); }),
        failure([&] { check_log_path(folder / "log.h5"); })}) {
    EXPECT_EQ(message.rfind("log " + folder / "log.h5" + ": exists already", 0), 0u) << message;
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "log.h5"), 3u);
}

TEST(RunLogErrors, AnUnwritablePlaceIsNamedWithTheSystemsReason) {
  const TempFolder folder;
  folder.write("file", {1});
  for (const auto& [path, reason] : {std::pair{folder / "no/log.h5", "No such file or directory"},
                                     std::pair{folder / "file/log.h5", "Not a directory"}}) {
    for (const std::string& message :
         {failure([&] { const RunLog log = RunLog::create(path, example_info()); }),
          failure([&] { check_log_path(path); })}) {
      EXPECT_EQ(message, "log " + path + ": cannot be created: " + reason);
    }
  }
  EXPECT_NO_THROW(check_log_path(folder / "new.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder / "new.h5"));
}

// Runs `work` in a separate process that ends through its exit handlers. Its files have at most
// `most_bytes`, which acts like a full disk. Returns the exit code, or 1000 plus the signal.
int exit_code_on_a_full_disk(rlim_t most_bytes, const std::function<int()>& work) {
  const pid_t writer = ::fork();
  if (writer == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{most_bytes, most_bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::exit(work());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(writer, &status, 0), writer);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(RunLogErrors, AFullDiskIsOneSentenceWhereverItIsMet) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  int made = 0, refused = 0;
  for (rlim_t bytes = 0; bytes <= 80'000; bytes += 8'000) {
    const int code = exit_code_on_a_full_disk(bytes, [&] {
      try {
        RunLog::create(path, example_info()).close(true);
        return 0;
      } catch (const Error& error) {
        const std::string text = error.what();
        if (error.kind() == ErrorKind::data &&
            text == "log " + path + ": cannot be created: File too large") {
          return 3;
        }
        std::fprintf(stderr, "%s\n", text.c_str());
        return 2;
      }
    });
    ASSERT_TRUE(code == 0 || code == 3) << bytes << " bytes: " << code;
    ++(code == 0 ? made : refused);
    EXPECT_EQ(std::filesystem::exists(path), code == 0) << bytes;
    std::filesystem::remove(path);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << bytes;
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 3);  // up to a disk of 24 kB at least
}

TEST(RunLog, AutoIsANameThatNoFileHas) {
  const TempFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  std::vector<pid_t> writers;
  for (int i = 0; i < 4; ++i) {
    writers.push_back(::fork());
    if (writers.back() != 0) continue;
    RunInfo info = example_info();
    info.config = {{"log", "auto"}};
    RunLog log = RunLog::create("auto", info);
    log.close(true);
    ::_exit(log.path().rfind("dptrain-2", 0) == 0 ? 0 : 1);
  }
  for (const pid_t writer : writers) {
    int status = 0;
    EXPECT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_EQ(status, 0);
  }
  std::size_t logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(".")) {
    EXPECT_GT(entry.file_size(), 0u);
    if (logs++ > 0 || !has_h5py()) continue;
    expect_contains(read_with_h5py(entry.path().string()), entry.path().filename().string());
  }
  std::filesystem::current_path(before);
  EXPECT_EQ(logs, writers.size());
}

TEST(Hdf5, ChecksCarryTheReason) {
  prepare_hdf5();
  EXPECT_EQ(
      failure([] { DP_CHECK_HDF5(H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT)); }),
      "No such file or directory");
  const std::string message = failure([] { DP_CHECK_HDF5(H5Dget_type(H5S_ALL)); });
  expect_contains(message, "HDF5: invalid dataset identifier (H5Dget_type(");
  expect_contains(message, "run_log_test.cpp");
}

TEST(Hdf5, HandlesCloseOnceAndMove) {
  H5Handle first(DP_CHECK_HDF5(H5Screate(H5S_SCALAR)), H5Sclose);
  const hid_t id = first.get();
  H5Handle second = std::move(first);
  EXPECT_EQ(second.get(), id);
  EXPECT_GT(H5Iis_valid(id), 0);
  second.close();
  second.close();
  EXPECT_EQ(H5Iis_valid(id), 0);
}

}  // namespace
}  // namespace dp
