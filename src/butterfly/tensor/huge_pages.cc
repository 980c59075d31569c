#include "butterfly/tensor/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

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

void* map_pages(std::uint64_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  // A huge page would take memory for what no one has written to.
  madvise(address, bytes, MADV_NOHUGEPAGE);
  return address;
}

void release_pages(std::byte* pages, std::uint64_t bytes) {
  madvise(pages, bytes, MADV_DONTNEED);
}

std::uint64_t small_page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void unmap_pages(void* memory, std::uint64_t bytes) {
  munmap(memory, bytes);
}

}  // namespace butterfly
