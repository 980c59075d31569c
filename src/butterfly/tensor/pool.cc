#include "butterfly/tensor/pool.h"

#include <bit>
#include <cstdlib>

#include "butterfly/base/units.h"
#include "butterfly/tensor/huge_pages.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

// From one huge page up, blocks are mapped on their own: the system backs them with huge pages, and takes them back.
constexpr std::uint64_t kSmallest = kTensorAlignment;

constexpr std::uint64_t class_bytes(int size_class) {
  return kSmallest << size_class;
}

constexpr int class_of(std::uint64_t bytes) {
  return bytes <= kSmallest ? 0 : std::bit_width(bytes - 1) - std::bit_width(kSmallest - 1);
}
static_assert(class_of(1) == 0 && class_of(64) == 0 && class_of(65) == 1 && class_of(128) == 1 && class_of(129) == 2);

void* take_from_system(std::uint64_t bytes) {
  return bytes >= kHugePageBytes ? map_huge(bytes, Commitment::kPages) : std::aligned_alloc(kTensorAlignment, bytes);
}

/// What of a block is resident once `bytes` of it were asked for.
std::uint64_t resident_of(std::uint64_t bytes, std::uint64_t block_bytes) {
  if (block_bytes < kHugePageBytes) return block_bytes;
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

}  // namespace

std::shared_ptr<Pool> Pool::create(PoolOptions options) {
  return std::shared_ptr<Pool>(new Pool(options));
}

const std::shared_ptr<Pool>& Pool::shared() {
  static const std::shared_ptr<Pool> pool = create();
  return pool;
}

Pool::~Pool() {
  trim();
}

Result<Storage> Pool::allocate(std::uint64_t bytes) {
  if (bytes == 0) return Storage{};
  const int index = class_of(bytes);
  if (index >= kClasses) {
    return make_error(ErrorCode::kNoMemory, "cannot allocate {} bytes, a block has at most {}", bytes,
                      class_bytes(kClasses - 1));
  }
  const std::uint64_t block_bytes = class_bytes(index);
  SizeClass& size_class = classes_[index];
  Block block;
  {
    const std::lock_guard lock(size_class.mutex);
    if (!size_class.waiting.empty()) {
      block = size_class.waiting.back();
      size_class.waiting.pop_back();
      cached_bytes_.fetch_sub(block_bytes, std::memory_order_relaxed);
      ++size_class.hits;
      ++size_class.allocated;
    }
  }
  trace::add(trace::Counter::kTensorPoolAllocations, 1);
  if (block.memory != nullptr) {
    trace::add(trace::Counter::kTensorPoolHits, 1);
  } else {
    block.memory = take_from_system(block_bytes);
    if (block.memory == nullptr) {
      return make_error(ErrorCode::kNoMemory, "the system refused {} for an allocation of {} bytes",
                        format_bytes(block_bytes), bytes);
    }
    const std::lock_guard lock(size_class.mutex);
    ++size_class.misses;
    ++size_class.allocated;
  }
  if (const std::uint64_t resident = resident_of(bytes, block_bytes); resident > block.touched) {
    hold(index, static_cast<std::int64_t>(resident - block.touched));
    block.touched = resident;
  }
  const std::uint64_t now = allocated_bytes_.fetch_add(block_bytes, std::memory_order_relaxed) + block_bytes;
  std::uint64_t peak = allocated_bytes_peak_.load(std::memory_order_relaxed);
  while (peak < now && !allocated_bytes_peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  std::shared_ptr<void> owner(
      block.memory, [pool = shared_from_this(), block, index](void* /*unused*/) { pool->give_back(block, index); });
  return Storage{std::move(owner),
                 MutableByteSpan(static_cast<std::byte*>(block.memory), static_cast<std::size_t>(bytes))};
}

void Pool::hold(int index, std::int64_t bytes) const {
  trace::hold(options_.owner, bytes);
  if (class_bytes(index) >= kHugePageBytes) trace::hold_beside_heap(bytes);
}

void Pool::return_to_system(const Block& block, int index) const {
  hold(index, -static_cast<std::int64_t>(block.touched));
  if (class_bytes(index) >= kHugePageBytes) {
    unmap_huge(block.memory, class_bytes(index));
  } else {
    std::free(block.memory);
  }
}

void Pool::give_back(Block block, int index) {
  const std::uint64_t block_bytes = class_bytes(index);
  SizeClass& size_class = classes_[index];
  allocated_bytes_.fetch_sub(block_bytes, std::memory_order_relaxed);
  // Claimed before it is kept, so that racing threads cannot exceed the limit together.
  const std::uint64_t cached = cached_bytes_.fetch_add(block_bytes, std::memory_order_relaxed) + block_bytes;
  const bool keep = cached <= options_.cached_bytes_max;
  {
    const std::lock_guard lock(size_class.mutex);
    --size_class.allocated;
    if (keep) size_class.waiting.push_back(block);
  }
  if (keep) return;
  cached_bytes_.fetch_sub(block_bytes, std::memory_order_relaxed);
  return_to_system(block, index);
}

PoolStatistics Pool::statistics() const {
  PoolStatistics statistics;
  for (int index = 0; index < kClasses; ++index) {
    const SizeClass& size_class = classes_[index];
    const std::lock_guard lock(size_class.mutex);
    if (size_class.hits + size_class.misses == 0) continue;
    const PoolStatistics::SizeClass entry{.block_bytes = class_bytes(index),
                                          .allocated = size_class.allocated,
                                          .cached = size_class.waiting.size(),
                                          .hits = size_class.hits,
                                          .misses = size_class.misses};
    statistics.allocated_bytes += entry.allocated * entry.block_bytes;
    statistics.reserved_bytes += (entry.allocated + entry.cached) * entry.block_bytes;
    statistics.hits += entry.hits;
    statistics.misses += entry.misses;
    statistics.classes.push_back(entry);
  }
  statistics.allocated_bytes_peak = allocated_bytes_peak_.load(std::memory_order_relaxed);
  return statistics;
}

std::uint64_t Pool::trim() {
  std::uint64_t released = 0;
  for (int index = 0; index < kClasses; ++index) {
    std::vector<Block> waiting;
    {
      const std::lock_guard lock(classes_[index].mutex);
      waiting.swap(classes_[index].waiting);
    }
    for (const Block& block : waiting) return_to_system(block, index);
    released += waiting.size() * class_bytes(index);
  }
  cached_bytes_.fetch_sub(released, std::memory_order_relaxed);
  return released;
}

}  // namespace butterfly
