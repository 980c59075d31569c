#include "butterfly/tensor/aligned_buffer.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"
#include "butterfly/tensor/huge_pages.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

namespace {

constexpr std::uint64_t kLine = 64;
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kMappedFrom = ~std::uint64_t{0};  // never, so that writing beyond one is seen
#else
constexpr std::uint64_t kMappedFrom = kHugePageBytes;
#endif

/// What is allocated for that many bytes; none where no number of bytes is so large.
std::optional<std::uint64_t> whole_bytes(std::uint64_t bytes) {
  const std::uint64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kLine;
  const auto padded = checked_add(bytes, alignment - 1);
  if (!padded) return std::nullopt;
  return *padded / alignment * alignment;
}

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

/// Nothing where the system refuses it.
std::byte* allocate(std::uint64_t bytes) {
  const auto whole = whole_bytes(bytes);
  if (!whole) return nullptr;
  if (*whole >= kMappedFrom) return static_cast<std::byte*>(map_huge(*whole, Commitment::kAll));
  return static_cast<std::byte*>(std::aligned_alloc(bytes >= kHugePageBytes ? kHugePageBytes : kLine, *whole));
}

void give_back(std::byte* memory, std::uint64_t bytes) {
  const std::uint64_t whole = *whole_bytes(bytes);
  if (whole < kMappedFrom) return std::free(memory);
  unmap_huge(memory, whole);
}

/// Tells trace of so much that is used of memory that malloc knows nothing of.
void hold_mapped(std::uint64_t allocated, std::int64_t used) {
  if (*whole_bytes(allocated) >= kMappedFrom) trace::hold_beside_heap(used);
}

tl::unexpected<Error> refused(std::uint64_t bytes) {
  return make_error(ErrorCode::kNoMemory, "the operating system refused {} of memory", format_bytes(bytes));
}

}  // namespace

struct AlignedBuffer::Neighbours {
  static constexpr std::uint64_t kTogether = 32ull << 20;
  explicit Neighbours(std::byte* memory) : data(memory) {}
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  ~Neighbours() {
    hold_mapped(kTogether, -static_cast<std::int64_t>(used));
    give_back(data, kTogether);
  }
  std::byte* const data;
  std::uint64_t used = 0;
};

Result<AlignedBuffer> AlignedBuffer::create(std::uint64_t bytes) {
  std::byte* memory = allocate(bytes);
  if (memory == nullptr) return refused(bytes);
  hold_mapped(bytes, static_cast<std::int64_t>(bytes));
  return AlignedBuffer(memory, bytes);
}

Result<AlignedBuffer> AlignedBuffer::create_beside_others(std::uint64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return create(bytes);  // so that writing beyond one is seen
#else
  constexpr std::uint64_t kTogether = Neighbours::kTogether;
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
  const std::uint64_t used = (bytes + kLine - 1) / kLine * kLine;
  neighbours->used += used;
  hold_mapped(kTogether, static_cast<std::int64_t>(used));
  buffer.neighbours_ = std::move(neighbours);
  return buffer;
#endif
}

Result<AlignedBuffer> AlignedBuffer::create_sparse(std::uint64_t bytes, PageKind pages) {
  AlignedBuffer buffer;
  buffer.sparse_ = true;
  buffer.page_bytes_ = pages == PageKind::kHuge ? kHugePageBytes : small_page_bytes();
  if (bytes == 0) return buffer;
  void* memory = pages == PageKind::kHuge ? map_huge(whole_pages(bytes), Commitment::kPages) : map_pages(bytes);
  if (memory == nullptr) return refused(bytes);
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.bytes_ = bytes;
  return buffer;
}

void AlignedBuffer::release(std::uint64_t begin, std::uint64_t end) {
  BF_CHECK(sparse_ && begin <= end && end <= bytes_, "a range of a sparse buffer");
  const std::uint64_t first = (begin + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  const std::uint64_t last = (end == bytes_ ? end + page_bytes_ - 1 : end) / page_bytes_ * page_bytes_;
  if (first < last) release_pages(data_ + first, last - first);
}

Result<AlignedBuffer> AlignedBuffer::create_shared(std::uint64_t bytes) {
  AlignedBuffer buffer;
  BF_ASSIGN_OR_RETURN(buffer.shared_, SharedMemory::create(bytes));
  buffer.data_ = buffer.shared_.bytes().data();
  buffer.bytes_ = bytes;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr || shared_.descriptor() >= 0 || neighbours_) return;
  if (sparse_) {
    if (page_bytes_ == kHugePageBytes) {
      unmap_huge(data_, whole_pages(bytes_));
    } else {
      unmap_pages(data_, bytes_);
    }
    return;
  }
  hold_mapped(bytes_, -static_cast<std::int64_t>(bytes_));
  give_back(data_, bytes_);
}

}  // namespace butterfly
