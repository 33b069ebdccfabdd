// Which threads wait for a device, so that another thread can tell that a wait does not end.
//
// A call that waits inside of a GPU's library has no deadline: if a kernel never ends, the call
// never returns, and nobody learns of it. So whoever waits says so here, and a thread of the
// program looks (app/process/device_watch.hpp).
//
// Any thread may call. Nothing is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace dp {

class DeviceWaits {
 public:
  // How long a wait may last. Of a `step`: as long as the operations of one take. `prompt`: of a
  // thread that other ranks ask questions meanwhile; only for operations that take milliseconds.
  enum class Kind { step, prompt };

  // The calling thread waits as long as it exists. `what` is a literal: what the device has to end,
  // "a copy to the host".
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

  // As long as it exists the device itself waits, for a function of the host.
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
    std::uint64_t number = 0;  // no two waits have the same
    Kind kind = Kind::step;
  };
  // The oldest wait of that kind that goes on. Nothing if there is none. Nothing of a step while
  // the device waits for a function of the host: it is not the device then that keeps others
  // waiting.
  [[nodiscard]] std::optional<Open> oldest(Kind kind);

 private:
  // More than threads wait at a time. Further waits are not watched.
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
