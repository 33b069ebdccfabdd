#include "kernels/device_waits.hpp"

#include <algorithm>

namespace dp {

std::size_t DeviceWaits::begin(const char* what, Kind kind) {
  const std::lock_guard lock(mutex_);
  const auto free = std::ranges::find(open_, nullptr, &Open::what);
  if (free != open_.end()) *free = {what, ++begun_, kind};
  return static_cast<std::size_t>(free - open_.begin());
}

void DeviceWaits::end(std::size_t slot) {
  const std::lock_guard lock(mutex_);
  if (slot < kSlots) open_[slot] = {};
}

void DeviceWaits::count_functions(int more) {
  const std::lock_guard lock(mutex_);
  functions_ += more;
}

std::optional<DeviceWaits::Open> DeviceWaits::oldest(Kind kind) {
  const std::lock_guard lock(mutex_);
  std::optional<Open> oldest;
  if (kind == Kind::step && functions_ > 0) return oldest;
  for (const Open& open : open_) {
    if (open.what != nullptr && open.kind == kind && (!oldest || open.number < oldest->number))
      oldest = open;
  }
  return oldest;
}

}  // namespace dp
