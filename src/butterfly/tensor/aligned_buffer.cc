#include "butterfly/tensor/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "butterfly/base/units.h"

namespace butterfly {

Result<AlignedBuffer> AlignedBuffer::create(std::uint64_t bytes) {
  constexpr std::uint64_t kHugePage = 2ull << 20;
  const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const auto padded = checked_add(bytes, alignment - 1);
  void* memory = padded ? std::aligned_alloc(alignment, *padded / alignment * alignment) : nullptr;
  if (memory == nullptr) {
    return make_error(ErrorCode::kNoMemory, "the operating system refused {} of memory", format_bytes(bytes));
  }
  if (bytes >= kHugePage) madvise(memory, *padded / alignment * alignment, MADV_HUGEPAGE);
  return AlignedBuffer(static_cast<std::byte*>(memory), bytes);
}

Result<AlignedBuffer> AlignedBuffer::create_shared(std::uint64_t bytes) {
  AlignedBuffer buffer;
  BF_ASSIGN_OR_RETURN(buffer.shared_, SharedMemory::create(bytes));
  buffer.data_ = buffer.shared_.bytes().data();
  buffer.bytes_ = bytes;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (shared_.descriptor() < 0) std::free(data_);
}

}  // namespace butterfly
