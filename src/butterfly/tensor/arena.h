// Scratch memory of one request: allocations only move a pointer, and all end together at reset(). Blocks come from
// a pool and go back to it. Not thread-safe: one arena per request. The arena owns the memory, callers borrow it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/tensor/pool.h"

namespace butterfly {

struct ArenaOptions {
  std::uint64_t block_bytes = std::uint64_t{1} << 20;  // taken from the pool at a time, or more where one needs more
};

class Arena {
 public:
  explicit Arena(std::shared_ptr<Pool> pool, ArenaOptions options = {}) : pool_(std::move(pool)), options_(options) {}
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  /// `bytes` aligned to 64, of unspecified contents, valid until reset(). Errors: kNoMemory naming the size.
  Result<MutableByteSpan> allocate(std::uint64_t bytes);

  /// `count` elements. T holds plain numbers: nothing is constructed or destroyed. Errors: kNoMemory.
  template <typename T>
  Result<std::span<T>> allocate_array(std::uint64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kTensorAlignment);
    const auto bytes = checked_multiply(count, sizeof(T));
    if (!bytes) return make_error(ErrorCode::kNoMemory, "{} elements of {} bytes do not fit", count, sizeof(T));
    BF_ASSIGN_OR_RETURN(const MutableByteSpan memory, allocate(*bytes));
    return std::span<T>(reinterpret_cast<T*>(memory.data()), static_cast<std::size_t>(count));
  }

  /// Ends every allocation. A request like the last then fits into one block.
  void reset();

  std::uint64_t used_bytes() const { return used_bytes_; }  // since reset(), alignment included
  std::uint64_t peak_bytes() const { return peak_bytes_; }  // the most used_bytes() ever was
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  std::shared_ptr<Pool> pool_;
  ArenaOptions options_;
  std::vector<Storage> blocks_;  // the last one is being filled
  std::uint64_t filled_ = 0;     // of the last block
  std::uint64_t used_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
};

}  // namespace butterfly
