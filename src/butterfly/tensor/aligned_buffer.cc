#include "butterfly/tensor/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>

#include "butterfly/base/units.h"

namespace butterfly {

namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kHugePage = 2ull << 20;

/// Nothing where the system refuses it, or no number of bytes is so large.
std::byte* allocate(std::uint64_t bytes) {
  const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  const auto padded = checked_add(bytes, alignment - 1);
  if (!padded) return nullptr;
  const std::uint64_t whole = *padded / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole);
  if (memory != nullptr && bytes >= kHugePage) madvise(memory, whole, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

tl::unexpected<Error> refused(std::uint64_t bytes) {
  return make_error(ErrorCode::kNoMemory, "the operating system refused {} of memory", format_bytes(bytes));
}

}  // namespace

struct AlignedBuffer::Neighbours {
  explicit Neighbours(std::byte* memory) : data(memory) {}
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  ~Neighbours() { std::free(data); }
  std::byte* const data;
  std::uint64_t used = 0;
};

Result<AlignedBuffer> AlignedBuffer::create(std::uint64_t bytes) {
  std::byte* memory = allocate(bytes);
  if (memory == nullptr) return refused(bytes);
  return AlignedBuffer(memory, bytes);
}

Result<AlignedBuffer> AlignedBuffer::create_beside_others(std::uint64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return create(bytes);  // so that writing beyond one is seen
#else
  constexpr std::uint64_t kTogether = 32ull << 20;
  if (bytes == 0 || bytes > kTogether / 4) return create(bytes);
  static std::mutex mutex;
  static std::weak_ptr<Neighbours> latest;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Neighbours> neighbours = latest.lock();
  if (!neighbours || neighbours->used + bytes > kTogether) {
    std::byte* memory = allocate(kTogether);
    if (memory == nullptr) return refused(bytes);
    neighbours = std::make_shared<Neighbours>(memory);
    latest = neighbours;
  }
  AlignedBuffer buffer(neighbours->data + neighbours->used, bytes);
  neighbours->used += (bytes + kLine - 1) / kLine * kLine;
  buffer.neighbours_ = std::move(neighbours);
  return buffer;
#endif
}

Result<AlignedBuffer> AlignedBuffer::create_shared(std::uint64_t bytes) {
  AlignedBuffer buffer;
  BF_ASSIGN_OR_RETURN(buffer.shared_, SharedMemory::create(bytes));
  buffer.data_ = buffer.shared_.bytes().data();
  buffer.bytes_ = bytes;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (shared_.descriptor() < 0 && !neighbours_) std::free(data_);
}

}  // namespace butterfly
