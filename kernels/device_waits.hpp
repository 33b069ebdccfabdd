// Records which threads are waiting for a device, so that another thread can detect a wait that
// does not end.
//
// A call that waits inside a GPU's library has no deadline: if a kernel never ends, the call never
// returns. Every such wait is therefore registered here, and a watching thread checks how long it
// lasts (app/process/device_watch.hpp).
//
// All methods may be called from any thread, and none allocates memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace dp {

class DeviceWaits {
 public:
  // How long a wait may last. `step`: as long as the operations of a training step take. `prompt`:
  // milliseconds only, because other ranks expect this thread to answer meanwhile.
  enum class Kind { step, prompt };

  // Registers a wait of the calling thread for the lifetime of this object. `what` is a string
  // literal that names what the device has to finish: "a copy to the host".
  class Wait {
   public:
    Wait(DeviceWaits& waits, const char* what, Kind kind = Kind::step)
        : waits_(waits), slot_(waits.begin(what, kind)) {}
    ~Wait() { waits_.end(slot_); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    DeviceWaits& waits_;
    std::size_t slot_;
  };

  // While this object exists, the device itself waits for a host function.
  class HostFunction {
   public:
    explicit HostFunction(DeviceWaits& waits) : waits_(waits) { waits_.count_functions(1); }
    ~HostFunction() { waits_.count_functions(-1); }
    HostFunction(const HostFunction&) = delete;
    HostFunction& operator=(const HostFunction&) = delete;

   private:
    DeviceWaits& waits_;
  };

  struct Open {
    const char* what = nullptr;
    std::uint64_t number = 0;  // unique among waits
    Kind kind = Kind::step;
  };
  // The oldest wait of this kind that is in progress, if any. No `step` wait is reported while the
  // device waits for a host function: the device is then not the cause.
  [[nodiscard]] std::optional<Open> oldest(Kind kind);

 private:
  // Every wait in progress takes a slot. There are more slots than threads that ever wait at the
  // same time. A wait that finds no free slot is not watched.
  static constexpr std::size_t kSlots = 8;

  std::size_t begin(const char* what, Kind kind);
  void end(std::size_t slot);
  void count_functions(int more);

  std::mutex mutex_;
  std::array<Open, kSlots> open_{};
  std::uint64_t begun_ = 0;
  int functions_ = 0;
};

}  // namespace dp
