// Where measurements are kept between runs: small text files, one for each kind, host, program and key. A program that
// was built anew measures anew. A cache that cannot be read or written is as good as none. Thread-safe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "butterfly/base/descriptor.h"

namespace butterfly {

/// $XDG_CACHE_HOME/butterfly, else ~/.cache/butterfly; nothing where BUTTERFLY_CACHE=off or there is no home.
std::optional<std::filesystem::path> cache_directory();

class MeasurementCache {
 public:
  /// `kind` begins the file's name, "peaks"; `key` is everything else that the measurement depends on. Nothing where
  /// there is no cache.
  static std::optional<MeasurementCache> open(std::string_view kind, std::string_view key);

  /// What was stored; empty where nothing was, or where it was measured beside other work that has ended by now.
  std::string load() const;
  /// `shortage` is the share of the CPU time that was wanted meanwhile and not got (usage/cpu_shortage.h).
  void store(const std::string& text, double shortage = 0.0) const;

  /// Held by the one process that measures, so that a hundred that start at once do not measure each other. Waits for
  /// others; where the lock cannot be had there is none. A measurement that needs another one may lock again: a thread
  /// does not wait for itself. Released by the thread that took it.
  class Lock {
   public:
    explicit Lock(const std::filesystem::path& path);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Descriptor directory_;
  };
  Lock lock() const { return Lock(path_.parent_path()); }
  /// Of a measurement that is not cached; nothing where there is no cache.
  static std::optional<Lock> lock_host();

 private:
  explicit MeasurementCache(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

}  // namespace butterfly
