#include "butterfly/tensor/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace butterfly {
namespace {

bool holds(const AlignedBuffer& buffer, std::size_t number) {
  return std::all_of(buffer.data(), buffer.data() + buffer.bytes(),
                     [&](std::byte byte) { return byte == static_cast<std::byte>(number); });
}

// Fails where neighbours overlap, or one takes the memory of the others with it.
TEST(AlignedBuffer, NeighboursAreApartAndOutliveEachOther) {
  constexpr std::uint64_t kSizes[] = {1, 63, 64, 65, 100'000, 3 << 20, 8 << 20, (8 << 20) + 1, 40 << 20};
  std::vector<AlignedBuffer> buffers;
  for (std::size_t i = 0; i < 30; ++i) {
    auto made = AlignedBuffer::create_beside_others(kSizes[i % std::size(kSizes)]);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->bytes(), kSizes[i % std::size(kSizes)]);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made->data()) % 64, 0u);
    std::fill_n(made->data(), made->bytes(), static_cast<std::byte>(i));
    buffers.push_back(std::move(*made));
  }
  for (std::size_t i = 0; i < buffers.size(); i += 2) buffers[i] = AlignedBuffer();
  for (std::size_t i = 1; i < buffers.size(); i += 2) EXPECT_TRUE(holds(buffers[i], i)) << i;
}

#ifndef __SANITIZE_ADDRESS__
// Fails where each of many small matrices gets pages of its own: no huge page holds them then.
TEST(AlignedBuffer, SmallNeighboursShareHugePages) {
  const AlignedBuffer first = *AlignedBuffer::create_beside_others(100'000);
  const AlignedBuffer second = *AlignedBuffer::create_beside_others(100'000);
  EXPECT_EQ(second.data() - first.data(), 100'032);
}
#endif

TEST(AlignedBuffer, MoreThanThereIsIsRefused) {
  EXPECT_EQ(AlignedBuffer::create(~std::uint64_t{0} - 8).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(AlignedBuffer::create_beside_others(~std::uint64_t{0} - 8).error().code, ErrorCode::kNoMemory);
}

}  // namespace
}  // namespace butterfly
