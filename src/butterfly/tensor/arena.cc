#include "butterfly/tensor/arena.h"

#include <algorithm>

namespace butterfly {

Result<MutableByteSpan> Arena::allocate(std::uint64_t bytes) {
  if (bytes == 0) return MutableByteSpan{};
  const auto padded = checked_add(bytes, kTensorAlignment - 1);
  if (!padded) return make_error(ErrorCode::kNoMemory, "cannot allocate {} bytes", bytes);
  const std::uint64_t aligned = *padded / kTensorAlignment * kTensorAlignment;
  if (blocks_.empty() || blocks_.back().bytes.size() - filled_ < aligned) {
    const std::uint64_t block_bytes = std::max(aligned, options_.block_bytes);
    BF_ASSIGN_OR_RETURN(Storage block, pool_->allocate(block_bytes));
    blocks_.push_back(std::move(block));
    filled_ = 0;
    reserved_bytes_ += block_bytes;
  }
  const MutableByteSpan memory =
      blocks_.back().bytes.subspan(static_cast<std::size_t>(filled_), static_cast<std::size_t>(bytes));
  filled_ += aligned;
  used_bytes_ += aligned;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return memory;
}

void Arena::reset() {
  if (blocks_.size() > 1) {
    // Next time in one block: the ends of many small ones would be wasted again and again.
    options_.block_bytes = std::max(options_.block_bytes, peak_bytes_);
    blocks_.clear();
    reserved_bytes_ = 0;
  }
  filled_ = 0;
  used_bytes_ = 0;
}

}  // namespace butterfly
