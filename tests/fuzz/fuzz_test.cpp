// Every target on its seeds, whole and damaged. The damage is the same in each run.
//
// DP_FUZZ_INPUTS says how many damaged inputs each target gets, and an expensive one a part of;
// default 3,000.
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <set>
#include <string>

#include "io/files/hdf5.hpp"
#include "io/files/trial.hpp"
#include "tests/codecs/codec_testing.hpp"
#include "tests/fuzz/hdf5_trial.hpp"
#include "tests/fuzz/targets.hpp"

namespace dp::fuzz {
namespace {

std::size_t mutations() {
  const char* text = std::getenv("DP_FUZZ_INPUTS");
  return text == nullptr ? 3'000 : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
}

class Damage {
 public:
  explicit Damage(std::uint64_t seed) : random_(seed) {}

  void apply(Bytes& bytes, const Bytes& other) {
    for (std::size_t times = 1 + below(3); times > 0; --times) once(bytes, other);
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }

  void once(Bytes& bytes, const Bytes& other) {
    const std::size_t n = bytes.size(), at = below(n);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(7)) {
      case 0:
        if (n > 0) bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (n > 0) bytes[at] = byte();
        break;
      case 2:  // a number that is far too large, or not one
        for (std::size_t i = at; i < std::min(n, at + 8); ++i) bytes[i] = 0xff;
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(place, 1 + below(40), byte());
        break;
      case 5:  // a part of another seed
        bytes.insert(place, other.begin() + static_cast<std::ptrdiff_t>(below(other.size())),
                     other.end());
        break;
      default:
        if (n > 0) bytes.erase(place, place + static_cast<std::ptrdiff_t>(1 + below(n - at)));
        break;
    }
  }

  std::mt19937_64 random_;
};

#if defined(__SANITIZE_ADDRESS__)
#define DP_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DP_ADDRESS_SANITIZER
#endif
#endif
#ifdef DP_ADDRESS_SANITIZER
// An empty HDF5 file that is never written to a disk.
hid_t test_file() {
  const H5Handle in_memory(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_core(in_memory.get(), 4096, false);
  return H5Fcreate("in memory", H5F_ACC_TRUNC, H5P_DEFAULT, in_memory.get());
}
#endif

// A fault of dptrain's readers is not taken for one of HDF5's, and can therefore be seen.
TEST(Fuzz, OnlyFaultsOfHdf5CountAsDamage) {
  prepare_trials();
  prepare_hdf5();
  const auto is_damage = [](const std::function<void()>& read) {
    try {
      try_in_child("", read);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return true;
    }
    return false;
  };
  const auto loop = [] {
    for (volatile int round = 0;;) round = round ^ 1;
  };
  EXPECT_FALSE(is_damage([] {}));
  EXPECT_FALSE(is_damage([] { throw Error(ErrorKind::data, "damaged"); }));
  EXPECT_FALSE(is_damage([] { std::raise(SIGSEGV); }));
  EXPECT_FALSE(is_damage([] { std::abort(); }));
  EXPECT_FALSE(is_damage(loop));
  // HDF5 calls it.
  const auto in_hdf5 = [](std::function<void()> work) {
    const H5Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    const auto each = [](hid_t, const char*, void* its) -> herr_t {
      (*static_cast<std::function<void()>*>(its))();
      return 0;
    };
    H5Piterate(list.get(), nullptr, each, &work);
  };
  EXPECT_TRUE(is_damage([&] { in_hdf5([] { std::raise(SIGSEGV); }); }));
  EXPECT_TRUE(is_damage([&] { in_hdf5([] { std::abort(); }); }));
  EXPECT_TRUE(is_damage([&] { in_hdf5(loop); }));
#ifdef DP_ADDRESS_SANITIZER
  // HDF5 writes behind memory that it was given: our fault. It reads what happens to be ours.
  const H5Handle file(test_file(), H5Fclose);
  const std::array<hsize_t, 1> length = {64};
  const H5Handle space(H5Screate_simple(1, length.data(), nullptr), H5Sclose);
  const H5Handle attribute(
      H5Acreate2(file.get(), "numbers", H5T_NATIVE_DOUBLE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  std::vector<double> numbers(length[0]), too_few(length[0] / 2);
  H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, numbers.data());
  EXPECT_FALSE(is_damage([&] { H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, numbers.data()); }));
  EXPECT_FALSE(is_damage([&] { H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, too_few.data()); }));
  std::vector<char> on_heap(64);
  volatile char read = 0;
  const volatile char* behind = on_heap.data() + on_heap.size();
  EXPECT_TRUE(is_damage([&] { in_hdf5([&] { read = *behind; }); }));
#endif
}

// The forms of ecq's payloads (ecq.hpp): plain, bf16, fp32, q4, q8, coded with one state, with
// two and with lanes.
TEST(Fuzz, SeedsHaveEveryFormOfEcq) {
  const std::vector<std::string> specs = test::all_codec_specs();
  const auto payload = std::ranges::find(targets(), "payload", &Target::name);
  constexpr std::size_t kForm = 3 + sizeof(float);
  std::set<int> forms;
  for (const Bytes& seed : payload->seeds()) {
    if (!specs[seed[0]].starts_with("ecq") || seed.size() <= kForm) continue;
    forms.insert(seed[kForm] < 64 ? seed[kForm] : seed[kForm] & ~31);
  }
  EXPECT_EQ(forms, (std::set<int>{0, 2, 3, 4, 5, 64, 96, 224}));
}

// What the process may have of memory until the end of the scope: a container whose length nobody
// has compared with the file throws std::bad_alloc. AddressSanitizer's own memory knows no limit;
// libFuzzer's programs have one of their own (run.sh).
class MemoryLimit {
 public:
  static constexpr rlim_t kBytes = 256 << 20;  // some 30 MB are used

  MemoryLimit() {
#ifndef DP_ADDRESS_SANITIZER
    ::getrlimit(RLIMIT_DATA, &before_);
    const rlimit limit{std::min(before_.rlim_cur, kBytes), before_.rlim_max};
    ::setrlimit(RLIMIT_DATA, &limit);
#endif
  }
  ~MemoryLimit() {
#ifndef DP_ADDRESS_SANITIZER
    ::setrlimit(RLIMIT_DATA, &before_);
#endif
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Fuzz, AnAllocationBeyondTheInputsIsSeen) {
#ifdef DP_ADDRESS_SANITIZER
  GTEST_SKIP() << "AddressSanitizer's own memory knows no limit";
#endif
  const MemoryLimit limit;
  volatile std::size_t size = std::size_t{512} << 20;  // a compiler may not leave it out
  EXPECT_THROW(::operator delete(::operator new(size)), std::bad_alloc);
}

TEST(Fuzz, DamagedSeedsEndInAnErrorAtMost) {
  prepare_trials();
  const MemoryLimit limit;
  for (const Target& target : targets()) {
    SCOPED_TRACE(std::string(target.name));
    const std::vector<Bytes> seeds = target.seeds();
    const std::size_t before = errors;
    for (const Bytes& seed : seeds) EXPECT_NO_THROW(target.run(seed));
    EXPECT_TRUE(errors == before || !target.has_whole_seeds);
    if (target.findings != nullptr) {
      for (const Bytes& found : target.findings()) EXPECT_NO_THROW(target.run(found));
    }
    target.run({});
    Damage damage(1);
    for (std::size_t i = 0; i < mutations() / target.cost; ++i) {
      Bytes bytes = seeds[i % seeds.size()];
      damage.apply(bytes, seeds[(i / seeds.size()) % seeds.size()]);
      ASSERT_NO_THROW(target.run(bytes)) << "input " << i;
    }
  }
}

}  // namespace
}  // namespace dp::fuzz
