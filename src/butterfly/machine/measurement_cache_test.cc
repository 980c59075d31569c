#include "butterfly/machine/measurement_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "butterfly/machine/usage/cpu_shortage.h"

namespace butterfly {
namespace {

TEST(MeasurementCacheTest, OneProcessOfAHostMeasuresAtATime) {
  const auto home = std::filesystem::path(::testing::TempDir()) / "measurement_cache_test";
  std::filesystem::create_directories(home / "butterfly");
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string restored = before != nullptr ? before : "";
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", home.c_str(), 1), 0);
  std::atomic<bool> second_measures = false;
  auto first = MeasurementCache::lock_host();
  ASSERT_TRUE(first.has_value());
  std::jthread other([&] {
    const auto second = MeasurementCache::lock_host();
    second_measures = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(second_measures);
  { const auto again = MeasurementCache::lock_host(); }  // of the thread that has it: neither waits nor releases
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(second_measures);
  first.reset();
  other.join();
  EXPECT_TRUE(second_measures);
  if (before != nullptr) {
    ::setenv("XDG_CACHE_HOME", restored.c_str(), 1);
  } else {
    ::unsetenv("XDG_CACHE_HOME");
  }
  std::filesystem::remove_all(home);
}

// Fails when a measurement that needs another one waits for the lock that it has.
TEST(MeasurementCache, AThreadDoesNotWaitForItself) {
  std::atomic<bool> locked_twice = false;
  std::jthread thread([&] {
    const auto first = MeasurementCache::lock_host();
    const auto second = MeasurementCache::lock_host();
    locked_twice = true;
  });
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);  // a third of a lock's
  while (!locked_twice && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  EXPECT_TRUE(locked_twice);
}

TEST(MeasurementCache, WhatWasMeasuredBesideOtherWorkIsKeptOnlyWhileThatGoesOn) {
  const std::filesystem::path home = std::filesystem::path(testing::TempDir()) / "disturbed-cache";
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", home.c_str(), 1);
  const auto cache = MeasurementCache::open("peaks", "key");
  ASSERT_TRUE(cache.has_value());
  cache->store("quiet", 0.01);
  EXPECT_EQ(cache->load(), "quiet");
  cache->store("loud", 0.5);
  const bool quiet = machine_is_quiet();
  const std::string loaded = cache->load();
  if (quiet == machine_is_quiet()) {
    EXPECT_EQ(loaded, quiet ? "" : "loud");
  }
  saved.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", saved.c_str(), 1);
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace butterfly
