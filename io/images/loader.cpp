#include "io/images/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::align_val_t kAlignment{64};

std::shared_ptr<std::byte> allocate_plain(std::size_t bytes) {
  return {new (kAlignment) std::byte[bytes],
          [](std::byte* memory) { ::operator delete[](memory, kAlignment); }};
}

// Threads fill a batch in pieces of this many images. All threads can thus work on the batch that
// is needed first, so few buffers are enough.
constexpr std::size_t kPieceImages = 16;

}  // namespace

// Below, "step i" means batch number i of an epoch, which is part `i % parts` of training step
// `i / parts`. The batch fills slots[i % slots.size()]. It consists of `pieces` pieces; the number
// of the first piece is `i * pieces`.
//
// Threads claim pieces in order. A piece may be claimed once the previous batch in its slot was
// given back. `mutex` guards all counters, including those of the slots. Until is_ready is set, a
// piece's images and labels belong to the thread that claimed the piece. After that they belong to
// the caller of next(). The sampler and the number of pieces change only while no thread is busy.
struct Loader::State {
  struct Slot {
    std::shared_ptr<std::byte> image_memory, crop_memory, label_memory;
    float* images = nullptr;  // null for raw batches, which have bytes and crops
    std::uint8_t* bytes = nullptr;
    ImageCrop* crops = nullptr;
    std::int32_t* labels = nullptr;
    Batch batch;
    std::size_t pieces_left = 0;
    bool is_ready = false;
    std::exception_ptr failure;  // of the earliest failed piece
    std::size_t failed_piece = 0;
  };

  const ImageSource& source;
  const LoaderOptions options;
  const Normalizer normalizer;
  Sampler sampler;
  std::size_t pieces;  // of a step, at least 1
  std::vector<Slot> slots;
  std::size_t largest = 0;  // samples that a slot has room for

  std::mutex mutex;
  std::condition_variable work;   // wakes the threads: a piece may be claimed, or stop
  std::condition_variable ready;  // wakes the reader: a batch is ready, or no thread is busy
  Augmentation view = {};         // the augmentation of images if it is not random
  std::size_t claimed = 0;        // the pieces before this one were claimed
  std::size_t released = 0;       // the batches before this one were given back
  std::size_t end = 0;            // steps of the current epoch; 0 before the first
  std::size_t busy = 0;           // threads that fill a piece
  std::size_t wanted = 0;         // the step that next() returns next
  bool stop = false;

  std::vector<std::jthread> threads;  // last: joined before anything else goes

  State(const ImageSource& image_source, const LoaderOptions& loader_options)
      : source(image_source),
        options(loader_options),
        normalizer(source.shape(), source.normalization()),
        sampler({.samples = source.count(),
                 .global_batch = options.global_batch,
                 .rank = options.rank,
                 .ranks = options.ranks,
                 .parts = options.parts,
                 .shares = options.shares,
                 .seed = options.seed,
                 .order = options.order}),
        pieces(pieces_now()),
        slots(options.buffers != 0 ? options.buffers : divide_up(options.threads, pieces) + 2) {
    DP_ASSERT(options.threads > 0, "a loader without threads");
    DP_ASSERT(!options.augment || fits(*options.augment, source.shape()),
              "images are smaller than their padding or cutout");
    allocate_slots(std::max(sampler.largest_batch(), options.largest_batch));
  }

  void allocate_slots(std::size_t samples) {
    largest = samples;
    for (Slot& slot : slots) {
      const auto allocate = options.allocate ? options.allocate : allocate_plain;
      const std::size_t of_value = options.is_raw ? sizeof(std::uint8_t) : sizeof(float);
      slot.image_memory = allocate(largest * source.shape().values() * of_value);
      slot.crop_memory = allocate(options.is_raw ? largest * sizeof(ImageCrop) : 1);
      slot.label_memory = allocate(largest * sizeof(std::int32_t));
      slot.labels = reinterpret_cast<std::int32_t*>(slot.label_memory.get());
      if (options.is_raw) {
        slot.bytes = reinterpret_cast<std::uint8_t*>(slot.image_memory.get());
        slot.crops = reinterpret_cast<ImageCrop*>(slot.crop_memory.get());
      } else {
        slot.images = reinterpret_cast<float*>(slot.image_memory.get());
      }
    }
  }

  [[nodiscard]] std::size_t pieces_now() const {
    return std::max<std::size_t>(divide_up(sampler.largest_batch(), kPieceImages), 1);
  }
  static std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    work.notify_all();
  }

  void start_threads() {
    for (std::size_t i = 0; i < options.threads; ++i) {
      threads.emplace_back([this] { run(); });
    }
  }

  void run() {
    std::vector<std::uint8_t> scratch;  // for the source, kept from image to image
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] {
        return stop || (claimed < end * pieces && claimed / pieces < released + slots.size());
      });
      if (stop) return;
      const std::size_t step = claimed / pieces, piece = claimed % pieces;
      ++claimed;
      Slot& slot = slots[step % slots.size()];
      if (piece == 0) slot.pieces_left = pieces;
      ++busy;
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (piece == 0 && options.on_step) options.on_step(step);
        fill(step, piece, slot, scratch);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && (!slot.failure || piece < slot.failed_piece)) {
        slot.failure = failure;
        slot.failed_piece = piece;
      }
      if (--slot.pieces_left == 0) {
        complete(step, slot);
        slot.is_ready = true;
      }
      --busy;
      ready.notify_one();
    }
  }

  void fill(std::size_t step, std::size_t piece, Slot& slot,
            std::vector<std::uint8_t>& scratch) const {
    const std::size_t whole = step / sampler.parts(), part = step % sampler.parts();
    const std::size_t values = source.shape().values();
    const std::size_t last =
        std::min((piece + 1) * kPieceImages, sampler.rank_samples(whole, part));
    for (std::size_t k = piece * kPieceImages; k < last; ++k) {
      const std::size_t sample = sampler.sample(whole, k, part);
      const Augmentation augmentation =
          options.augment ? draw_augmentation(*options.augment, source.shape(), options.seed,
                                              sampler.epoch(), sample)
                          : view;
      const ImageSource::Image image = source.read(sample, augmentation, scratch);
      if (options.is_raw) {
        std::copy(image.bytes.begin(), image.bytes.end(), slot.bytes + k * values);
        slot.crops[k] = to_crop(image.rest);
      } else {
        normalizer.apply(image.bytes, image.rest, {slot.images + k * values, values});
      }
      slot.labels[k] = source.label(sample);
    }
  }

  void complete(std::size_t step, Slot& slot) const {
    const std::size_t whole = step / sampler.parts(), part = step % sampler.parts();
    const std::size_t samples = sampler.rank_samples(whole, part);
    const std::size_t values = source.shape().values();
    slot.batch = {};
    slot.batch.labels = {slot.labels, samples};
    slot.batch.samples = samples;
    slot.batch.global_samples = sampler.global_samples(whole);
    slot.batch.step = whole;
    slot.batch.part = part;
    const StepImages images = sampler.images(whole, part);
    slot.batch.first_image = images.first;
    slot.batch.image_stride = images.stride;
    if (options.is_raw) {
      slot.batch.bytes = {slot.bytes, samples * values};
      slot.batch.crops = {slot.crops, samples};
    } else {
      slot.batch.images = {slot.images, samples * values};
    }
  }

  // Ends the epoch. When the call returns, no thread is busy, and no thread will claim another
  // piece.
  void end_epoch(std::unique_lock<std::mutex>& lock) {
    end = 0;
    ready.wait(lock, [this] { return busy == 0; });
  }

  // Lets the threads fill batches from `batch` on. Call this function after end_epoch().
  void begin_with(std::size_t batch) {
    for (Slot& slot : slots) {
      slot.is_ready = false;
      slot.failure = nullptr;
    }
    released = wanted = batch;
    claimed = released * pieces;
    end = sampler.steps() * sampler.parts();
  }

  void start_epoch(std::uint64_t epoch, std::size_t first_step) {
    {
      std::unique_lock lock(mutex);
      end_epoch(lock);
      sampler.start_epoch(epoch);
      DP_ASSERT(first_step <= sampler.steps(), "first step {} of {}", first_step, sampler.steps());
      begin_with(first_step * sampler.parts());
    }
    work.notify_all();
  }

  void set_shares(const Shares& shares) {
    {
      std::unique_lock lock(mutex);
      const bool is_in_epoch = end > 0;
      end_epoch(lock);
      sampler.set_shares(shares);
      pieces = pieces_now();
      if (sampler.largest_batch() > largest) allocate_slots(sampler.largest_batch());
      if (is_in_epoch) begin_with(wanted);
    }
    work.notify_all();
  }

  void set_view(const Augmentation& augmentation) {
    std::unique_lock lock(mutex);
    end_epoch(lock);
    view = augmentation;
  }

  void set_batch(std::size_t global_batch, std::size_t parts) {
    std::unique_lock lock(mutex);
    end_epoch(lock);
    sampler.set_batch(global_batch, parts);
    pieces = pieces_now();
    if (sampler.largest_batch() > largest) allocate_slots(sampler.largest_batch());
  }

  const Batch& next() {
    std::unique_lock lock(mutex);
    DP_ASSERT(wanted < end, "next() was called after the last of {} steps", end);
    if (wanted > released) {  // the batch that the reader had until now
      slots[released % slots.size()].is_ready = false;
      ++released;
      work.notify_all();  // all threads may claim a step's pieces
    }
    Slot& slot = slots[wanted % slots.size()];
    ready.wait(lock, [&] { return slot.is_ready; });
    // `wanted` does not advance past a failed step, so the next call throws again.
    if (slot.failure) std::rethrow_exception(slot.failure);
    ++wanted;
    return slot.batch;
  }
};

Loader::Loader(const ImageSource& source, const LoaderOptions& options)
    : state_(std::make_unique<State>(source, options)) {
  state_->start_threads();
}
Loader::~Loader() = default;

std::size_t Loader::steps() const noexcept { return state_->sampler.steps(); }
std::size_t Loader::largest_batch() const { return state_->sampler.largest_batch(); }

std::size_t Loader::parts() const noexcept { return state_->sampler.parts(); }

void Loader::set_batch(std::size_t global_batch, std::size_t parts) {
  state_->set_batch(global_batch, parts);
}

void Loader::set_shares(const Shares& shares) { state_->set_shares(shares); }

void Loader::set_view(const Augmentation& view) { state_->set_view(view); }

void Loader::start_epoch(std::uint64_t epoch, std::size_t first_step) {
  state_->start_epoch(epoch, first_step);
}

const Batch& Loader::next() { return state_->next(); }

bool Loader::is_ready() const {
  const std::lock_guard lock(state_->mutex);
  const State::Slot& slot = state_->slots[state_->wanted % state_->slots.size()];
  // If there is only one slot, its is_ready may belong to the batch that the caller still holds.
  // The next batch is then not ready.
  return state_->wanted < state_->end && state_->claimed > state_->wanted * state_->pieces &&
         slot.is_ready && state_->slots.size() > 1;
}

}  // namespace dp
