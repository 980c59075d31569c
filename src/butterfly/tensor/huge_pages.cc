#include "butterfly/tensor/huge_pages.h"

#include <sys/mman.h>

#include <limits>

namespace butterfly {

void* map_huge(std::uint64_t bytes, Commitment commitment) {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - kHugePageBytes) return nullptr;
  // One huge page more than needed, cut off again on both sides, so that the block starts on a huge page.
  const std::uint64_t mapped = bytes + kHugePageBytes;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (commitment == Commitment::kPages ? MAP_NORESERVE : 0);
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t aligned = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uint64_t before = aligned - begin;
  const std::uint64_t after = mapped - before - bytes;
  if (before > 0) munmap(address, before);
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + bytes), after);
  // Only advice: a system without huge pages refuses it and works.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void unmap_huge(void* memory, std::uint64_t bytes) {
  munmap(memory, bytes);
}

}  // namespace butterfly
