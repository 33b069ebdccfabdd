#include "comm/reducer/bucket_pipeline.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Keeps `owned` until the process ends, since transfers that are under way may still read and write
// it. The memory stays reachable, so that a leak check does not report it.
template <class T>
void keep_for_ever(std::vector<std::unique_ptr<T>>& owned) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<T>>;
  const std::lock_guard lock(mutex);
  std::ranges::move(owned, std::back_inserter(kept));
}

}  // namespace

BucketPipeline::BucketPipeline(std::size_t buckets, std::size_t in_flight, Device* device,
                               PipelineHooks hooks)
    : hooks_(std::move(hooks)),
      device_(device),
      exchanges_(buckets),
      buffers_(std::clamp<std::size_t>(in_flight, 1, std::max<std::size_t>(buckets, 1))),
      is_buffer_free_(buffers_.size(), true),
      states_(buckets),
      posted_(buckets),
      started_(buckets),
      delivered_(buckets),
      first_open_(buckets) {}

BucketPipeline::~BucketPipeline() {
  if (is_over()) return;
  keep_for_ever(exchanges_);
  keep_for_ever(buffers_);
}

void BucketPipeline::fit_buffers() {
  BufferNeeds most;
  for (const auto& exchange : exchanges_) {
    const BufferNeeds needs = exchange->needs();
    most.count = std::max(most.count, needs.count);
    most.bytes = std::max(most.bytes, needs.bytes);
  }
  if (buffers_.front() != nullptr && most.count <= buffer_needs_.count &&
      most.bytes <= buffer_needs_.bytes) {
    return;
  }
  buffer_needs_ = most;
  // Frees the old sets first, so that old and new need not fit into memory together.
  for (auto& buffers : buffers_) buffers.reset();
  for (auto& buffers : buffers_) buffers = std::make_unique<BufferSet>(most, device_);
}

void BucketPipeline::begin_step(std::uint64_t step) {
  DP_ASSERT(is_over(), "step {} is not over: bucket {} of {} is still open", step_, first_open_,
            exchanges_.size());
  step_ = step;
  posted_ = started_ = delivered_ = first_open_ = 0;
}

bool BucketPipeline::look() {
  post();
  bool has_moved = start();
  for (std::size_t b = first_open_; b < posted_; ++b) {
    State& state = states_[b];
    if (!state.is_open) continue;
    has_moved |= exchanges_[b]->progress();
    if (!state.is_delivered && b < started_ && exchanges_[b]->delivered()) {
      state.is_delivered = true;
      if (hooks_.delivered) hooks_.delivered(b);
    }
    if (!exchanges_[b]->done()) continue;
    is_buffer_free_[state.buffers] = true;
    state.is_open = false;
  }
  while (first_open_ < started_ && exchanges_[first_open_]->done()) {
    ++first_open_;
    has_moved = true;
  }
  return has_moved;
}

void BucketPipeline::post() {
  for (std::size_t set = 0; set < buffers_.size() && posted_ < exchanges_.size(); ++set) {
    if (!is_buffer_free_[set]) continue;
    exchanges_[posted_]->post_receives(*buffers_[set], step_);
    is_buffer_free_[set] = false;
    states_[posted_++] = {.buffers = set, .is_open = true, .is_delivered = false};
  }
}

bool BucketPipeline::start() {
  bool has_moved = false;
  while (can_start()) {
    exchanges_[started_]->prepare();
    if (hooks_.starts) hooks_.starts(started_);
    exchanges_[started_++]->start();
    has_moved = true;
  }
  return has_moved;
}

std::optional<std::size_t> BucketPipeline::next_delivered() {
  if (delivered_ == started_ || !exchanges_[delivered_]->delivered()) return std::nullopt;
  return delivered_++;
}

}  // namespace dp
