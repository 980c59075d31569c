// Memory that the system maps on its own, for what is large: it is backed with huge pages where there are some, and
// goes back at once. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace butterfly {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

/// Whether the system sets memory aside for all of it at once, and refuses what it has not got; or page by page.
enum class Commitment : std::uint8_t { kAll, kPages };

/// `bytes`, a multiple of kHugePageBytes, aligned to it; null where the system refuses.
void* map_huge(std::uint64_t bytes, Commitment commitment);
void unmap_huge(void* memory, std::uint64_t bytes);

/// Zero, of the system's small pages, each of which takes memory from when it is written to until it is released: for
/// arrays of which a process holds a part. Null where the system refuses.
void* map_pages(std::uint64_t bytes);
/// Whole pages, which are zero again and take no memory.
void release_pages(std::byte* pages, std::uint64_t bytes);
std::uint64_t small_page_bytes();
void unmap_pages(void* memory, std::uint64_t bytes);

}  // namespace butterfly
