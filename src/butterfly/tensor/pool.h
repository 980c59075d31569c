// Memory for tensors: blocks of power-of-two sizes from 64 B, aligned to 64 B, kept for the next allocation of their
// size when given back. Thread-safe. Blocks are owned by shared_ptr because slices, arenas and messages on their way
// out share them; each keeps its pool alive, so either may be dropped first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/trace/zones.h"

namespace butterfly {

inline constexpr std::uint64_t kTensorAlignment = 64;

/// A shared block of memory. Copies share it; the last one gives it back.
struct Storage {
  std::shared_ptr<void> owner;  // empty for zero bytes
  MutableByteSpan bytes;        // as many as were asked for
};

struct PoolOptions {
  std::uint64_t cached_bytes_max = std::uint64_t{256} << 20;  // given-back blocks beyond this go to the system
  trace::Owner owner = trace::Owner::kBuffers;                // who holds what is in use and what waits
};

struct PoolStatistics {
  struct SizeClass {
    std::uint64_t block_bytes = 0;
    std::uint64_t allocated = 0;  // blocks in use
    std::uint64_t cached = 0;     // blocks waiting
    std::uint64_t hits = 0;       // allocations served by a waiting block
    std::uint64_t misses = 0;     // allocations served by the system
  };
  std::uint64_t allocated_bytes = 0;       // in use, in whole blocks
  std::uint64_t allocated_bytes_peak = 0;  // the most there ever was
  std::uint64_t reserved_bytes = 0;        // in use and waiting
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::vector<SizeClass> classes;  // ascending, those ever used
};

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  static std::shared_ptr<Pool> create(PoolOptions options = {});

  /// The process's own pool, with default options; lives until the process ends.
  static const std::shared_ptr<Pool>& shared();

  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// `bytes` of unspecified contents. Errors: kNoMemory naming the size, when it overflows or the system refuses.
  Result<Storage> allocate(std::uint64_t bytes);

  PoolStatistics statistics() const;

  /// Gives every waiting block to the system. Returns how many bytes that were.
  std::uint64_t trim();

 private:
  // 64 B << 41 = 128 TiB, the address space of a process.
  static constexpr int kClasses = 42;

  /// What was asked of a block so far: pages beyond it were never touched, and are not there.
  struct Block {
    void* memory = nullptr;
    std::uint64_t touched = 0;
  };
  struct SizeClass {
    mutable std::mutex mutex;
    std::vector<Block> waiting;
    std::uint64_t allocated = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
  };

  explicit Pool(PoolOptions options) : options_(options) {}
  void give_back(Block block, int size_class);
  /// Tells trace of bytes that a block has, or has no longer.
  void hold(int size_class, std::int64_t bytes) const;
  void return_to_system(const Block& block, int size_class) const;

  const PoolOptions options_;
  SizeClass classes_[kClasses];
  std::atomic<std::uint64_t> cached_bytes_{0};
  std::atomic<std::uint64_t> allocated_bytes_{0};
  std::atomic<std::uint64_t> allocated_bytes_peak_{0};
};

}  // namespace butterfly
