// dptrain-pack packs a folder of images into one HDF5 file, for disks that are slow with small
// files and for copying to other machines. It is one process; io/images/image_pack.hpp does the
// work.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/options/options_print.hpp"
#include "app/options/options_words.hpp"
#include "app/process/cpu_limits.hpp"
#include "app/process/option_names.hpp"
#include "io/files/text_table.hpp"
#include "io/images/image_pack.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/file_size_limit.hpp"
#include "kernels/base/standard_streams.hpp"

namespace {

constexpr const char* kHelp =
    "dptrain-pack FOLDER FILE.h5 [options]: makes one file of a folder of images.\n"
    "\n  dptrain-pack photos photos.h5\n"
    "  dptrain --dataset folder --data-dir photos.h5\n"
    "\nFOLDER is what dptrain's --data-dir takes for --dataset folder: train and val (or\n"
    "test), or one tree, with a folder of JPEG and PNG images for each class. FILE.h5\n"
    "must not exist yet. It holds the images' files as they are, so that training sees\n"
    "the same bits as from the folder. Every image is decoded once as a check.\n";

void show_progress(std::size_t done, std::size_t all) {
  std::fprintf(stderr, "\r%s of %s images",
               dp::format_count(static_cast<std::int64_t>(done)).c_str(),
               dp::format_count(static_cast<std::int64_t>(all)).c_str());
  if (done == all) std::fputc('\n', stderr);
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  dp::check_output();
  return EXIT_SUCCESS;
}

int run(const std::vector<std::string>& arguments) {
  dp::survive_file_size_limit();
  std::int64_t threads = 0;
  dp::PackRequest request;
  dp::OptionTable table = {
      {"Options",
       {dp::choice_row("bad-images", request.bad_images, {"fail", "skip"},
                       "handling of an unreadable image; skip: leave it out and name it"),
        dp::whole_row("threads", threads, {0, 1024}, "decoding threads; 0: one per usable core"),
        dp::call_row("version", "print the version, then end", [] {}),
        dp::call_row("help", "print this help, then end", [] {})}}};
  if (dp::asks_for(arguments, "--help")) {
    std::string text = kHelp;
    dp::append_options(text, table);
    return print(dp::without_trailing_blanks(text));
  }
  if (dp::asks_for(arguments, "--version")) {
    return print("dptrain-pack " DP_VERSION "\n");
  }
  const dp::CommandLine line = {.table = table, .program = "dptrain-pack", .takes_words = true};
  const dp::GivenWords given = line.split(arguments);
  for (const auto& [row, value] : given.options) dp::set_option(*row, value);
  if (given.others.size() != 2) {
    dp::throw_error(dp::ErrorKind::usage,
                    "needs two names, FOLDER and FILE.h5, but got {}; see dptrain-pack --help",
                    given.others.size());
  }
  request.folder = given.others[0];
  request.path = given.others[1];
  request.threads = static_cast<std::size_t>(threads > 0 ? threads : dp::usable_threads());
  if (::isatty(STDERR_FILENO) != 0) request.on_progress = show_progress;
  const dp::PackReport report = dp::write_image_pack(request);
  for (const std::string& warning : report.warnings) {
    std::fprintf(stderr, "dptrain-pack: %s\n", warning.c_str());
  }
  std::string parts;
  for (const std::string& part : report.parts) parts += part + ", ";
  return print(fmt::format("{}: {}{}\n", request.path, parts,
                           dp::format_bytes(static_cast<double>(report.bytes))));
}

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_streams();
  try {
    return dp::with_option_names(dp::kPackNames, [&] { return run({argv + 1, argv + argc}); });
  } catch (...) {
    std::string message;
    const int code = dp::exit_code_of_current_exception(message);
    std::fprintf(stderr, "dptrain-pack: %s\n", message.c_str());
    return code;
  }
}
