// JPEG by libjpeg-turbo.
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>
// After jpeglib.h:
#include <jerror.h>

#include <algorithm>
#include <vector>

#include "io/images/encoded_image.hpp"

#ifndef JCS_EXTENSIONS
#error "dptrain needs libjpeg-turbo. On Debian and Ubuntu: apt-get install libjpeg-dev"
#endif

namespace dp::jpeg {
namespace {

// When libjpeg finds an error, it calls back instead of ending the program, and the callback leaves
// libjpeg by longjmp(). The function that calls libjpeg must therefore hold no object with a
// destructor.
struct Exit {
  jpeg_error_mgr manager;  // first, so that a pointer to it can be cast to Exit*
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  bool may_lack_scans;  // a warning is harmless only if all scans are there
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* exit = reinterpret_cast<Exit*>(info->err);
  info->err->format_message(info, exit->message);
  std::longjmp(exit->jump, 1);
}

[[noreturn]] void leave_with(Exit* exit, const char* message) {
  std::snprintf(exit->message, sizeof exit->message, "%s", message);
  std::longjmp(exit->jump, 1);
}

// Warnings have level -1. Warnings that do not affect any pixel are ignored.
void judge_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  auto* exit = reinterpret_cast<Exit*>(info->err);
  const auto* reader = reinterpret_cast<j_decompress_ptr>(info);
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:  // bytes between two segments
    case JWRN_NOT_SEQUENTIAL:   // fields of a scan header that have one possible meaning
    case JWRN_ADOBE_XFORM:      // an unknown number; every decoder takes YCbCr or YCCK
    case JWRN_JFIF_MAJOR:
    case JWRN_BOGUS_ICC:
    case JWRN_TOO_MUCH_DATA:
      return;
    case JWRN_BOGUS_PROGRESSION: {
      // The order of scans is unusual. Two cases are harmless if all scans come in the end. An AC
      // scan may come before the DC scan (libjpeg then names coefficient 0), and whole values may
      // come a second time. But if a scan refines bits that have not come yet, an earlier scan was
      // lost.
      const bool is_early_ac = reader->Ss != 0 && info->err->msg_parm.i[1] == 0;
      if (reader->Ah != 0 && !is_early_ac) leave(info);
      exit->may_lack_scans = true;
      return;
    }
    default:  // libjpeg would guess: bad codes, missing bits, a wrong restart mark, no end
      leave(info);
  }
}

// Whether the scans of a progressive JPEG contained every bit of every coefficient.
bool has_all_scans(const jpeg_decompress_struct& info) {
  for (int c = 0; c < info.num_components; ++c) {
    for (int k = 0; k < DCTSIZE2; ++k) {
      if (info.coef_bits[c][k] != 0) return false;
    }
  }
  return true;
}

void count_scans(j_common_ptr info) {
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  char message[40];
  std::snprintf(message, sizeof message, "more than %d scans", kMostScans);
  leave_with(reinterpret_cast<Exit*>(info->err), message);
}

// Rows and columns that are decoded beyond the wanted ones. The interpolation of colour looks at
// neighbours; with this margin, the kept pixels have the same values as if the whole image were
// decoded.
constexpr JDIMENSION kMarginRows = 32, kMarginColumns = 16;

struct Job {
  std::span<const std::uint8_t> bytes;
  const ImageHeader& header;
  std::uint32_t denominator;
  PixelBox wanted;
  RowSink& sink;
  std::vector<std::uint8_t>& row;  // of the whole width
  bool has_other_size = false;
  std::uint64_t held_bytes = 0;  // for the coefficients
};

// The memory for the coefficients of a file with several scans. Each block has 64 coefficients of 2
// bytes. libjpeg keeps all of them in memory before it returns the first row.
std::uint64_t coefficient_bytes(const jpeg_decompress_struct& info) {
  std::uint64_t blocks = 0;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& component = info.comp_info[c];
    blocks += std::uint64_t{component.width_in_blocks} * component.height_in_blocks;
  }
  return blocks * DCTSIZE2 * sizeof(JCOEF);
}

// RGB = (255 - ink)(255 - black) / 255. The stored values are inverted, as Adobe writes them. Like
// Pillow, we assume this even without Adobe's segment.
void turn_into_rgb(std::uint8_t* pixel, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i, pixel += 4) {
    const int black = 255 - pixel[3];
    for (int c = 0; c < 3; ++c) {
      const int ink = 255 - pixel[c];
      const int product = ink * (255 - black) + 128;
      const int scaled = ((product >> 8) + product) >> 8;
      pixel[c] = static_cast<std::uint8_t>(std::clamp(255 - black - scaled, 0, 255));
    }
  }
}

// Returns false if libjpeg has jumped out; exit.message then says why.
bool run(Job& job, jpeg_decompress_struct& info, Exit& exit) {
  jpeg_progress_mgr progress = {};
  progress.progress_monitor = count_scans;
  if (setjmp(exit.jump) != 0) return false;
  jpeg_create_decompress(&info);
  info.progress = &progress;
  jpeg_mem_src(&info, job.bytes.data(), static_cast<unsigned long>(job.bytes.size()));
  jpeg_read_header(&info, TRUE);
  if (info.image_width != job.header.width || info.image_height != job.header.height) {
    job.has_other_size = true;
    return true;
  }
  if (jpeg_has_multiple_scans(&info)) job.held_bytes = coefficient_bytes(info);
  if (!may_hold(job.held_bytes, job.bytes.size())) return true;
  const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = is_cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  info.scale_num = 1;
  info.scale_denom = job.denominator;
  jpeg_start_decompress(&info);  // if the file has several scans, reads all of them

  JDIMENSION x = job.wanted.x, width = job.wanted.width;
  const JDIMENSION right = std::min<JDIMENSION>(x + width + kMarginColumns, info.output_width);
  x -= std::min(x, kMarginColumns);
  width = right - x;
  if (width < info.output_width) jpeg_crop_scanline(&info, &x, &width);
  const PixelBox box = {.x = x, .y = job.wanted.y, .width = width, .height = job.wanted.height};
  JSAMPROW pixels = job.row.data();

  if (box.y > kMarginRows) jpeg_skip_scanlines(&info, box.y - kMarginRows);
  while (info.output_scanline < info.output_height) {
    const JDIMENSION row = info.output_scanline;
    // Decode the last row, too, because libjpeg does not check rows that are skipped at the end.
    const JDIMENSION after = box.y + box.height + kMarginRows;
    if (row >= after && row + 1 < info.output_height) {
      jpeg_skip_scanlines(&info, info.output_height - 1 - row);
      continue;
    }
    jpeg_read_scanlines(&info, &pixels, 1);
    if (row < box.y || row >= box.y + box.height) continue;
    if (is_cmyk) turn_into_rgb(pixels, box.width);
    job.sink.take_row(box, row, pixels);
  }

  if (exit.may_lack_scans && !has_all_scans(info)) leave_with(&exit, "it lacks scans");
  return true;
}

std::uint32_t word(std::span<const std::uint8_t> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(bytes[at] << 8 | bytes[at + 1]);
}

}  // namespace

// Walks over the segments up to the frame header.
std::optional<ImageHeader> read_header(std::span<const std::uint8_t> bytes,
                                       std::uint64_t file_bytes) {
  const auto more = [&](std::size_t needed) -> std::optional<ImageHeader> {
    if (needed > file_bytes) throw BadImage("is cut off in its header");
    return {};
  };
  for (std::size_t at = 2;;) {
    if (at + 4 > bytes.size()) return more(at + 4);
    if (bytes[at] != 0xFF) {  // superfluous bytes
      ++at;
      continue;
    }
    const std::uint8_t marker = bytes[at + 1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    if (marker == 0 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) {
      at += 2;
      continue;
    }
    if (marker == 0xD9 || marker == 0xDA) throw BadImage("is a JPEG without a frame");
    const std::uint32_t length = word(bytes, at + 2);
    if (length < 2) throw BadImage("has a damaged JPEG header");
    const bool is_frame =
        marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (!is_frame) {
      at += 2 + length;
      continue;
    }
    if (at + 10 > bytes.size()) return more(at + 10);
    if (bytes[at + 4] != 8) {
      throw BadImage(fmt::format("is a JPEG with {} bits per sample; 8 are read", bytes[at + 4]));
    }
    const std::uint8_t components = bytes[at + 9];
    if (components != 1 && components != 3 && components != 4) {
      throw BadImage(fmt::format("is a JPEG with {} channels; 1, 3 and 4 are read", components));
    }
    const bool is_known = marker <= 0xC2 || marker == 0xC9 || marker == 0xCA;
    if (!is_known) throw BadImage("is a JPEG of a rare kind (lossless or hierarchical)");
    return ImageHeader{.format = ImageFormat::jpeg,
                       .width = word(bytes, at + 7),
                       .height = word(bytes, at + 5),
                       .kinds = {.is_grey = components == 1, .is_cmyk = components == 4}};
  }
}

void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header,
            std::uint32_t denominator, const PixelBox& wanted, RowSink& sink) {
  std::vector<std::uint8_t> row(std::size_t{4} * scaled_size(header.width, denominator));
  Job job = {.bytes = bytes,
             .header = header,
             .denominator = denominator,
             .wanted = wanted,
             .sink = sink,
             .row = row};
  Exit exit = {};
  struct Reader {
    jpeg_decompress_struct info = {};
    ~Reader() { jpeg_destroy_decompress(&info); }
  } reader;
  reader.info.err = jpeg_std_error(&exit.manager);
  exit.manager.error_exit = leave;
  exit.manager.emit_message = judge_message;
  if (!run(job, reader.info, exit)) {
    throw BadImage(fmt::format("is a damaged JPEG: {}", exit.message));
  }
  if (job.has_other_size) throw BadImage("has changed size since the run began");
  check_held_memory("a JPEG of several scans", job.held_bytes, bytes.size());
}

}  // namespace dp::jpeg
