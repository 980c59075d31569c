#include "butterfly/machine/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace butterfly {
namespace {

TEST(SharedMemory, IsZeroAndItsSizeStays) {
  // A large one is on huge pages, with a rest.
  for (const std::uint64_t bytes : {std::uint64_t{64}, (std::uint64_t{4} << 20) + 4096 + 64}) {
    const SharedMemory memory = SharedMemory::create(bytes).value();
    EXPECT_EQ(memory.bytes().size(), bytes);
    EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte one) { return one == std::byte{0}; }));
    EXPECT_EQ(::ftruncate(memory.descriptor(), 0), -1) << "or another process would die of reading";
    EXPECT_EQ(::ftruncate(memory.descriptor(), static_cast<off_t>(bytes) + 1), -1);
  }
}

TEST(SharedMemory, IsTheSameForEveryProcessWithItsDescriptor) {
  const SharedMemory mine = SharedMemory::create(4096).value();
  const SharedMemory theirs = SharedMemory::adopt(::dup(mine.descriptor()), 4096).value();
  EXPECT_NE(mine.bytes().data(), theirs.bytes().data());
  mine.bytes()[4095] = std::byte{42};
  EXPECT_EQ(theirs.bytes()[4095], std::byte{42});
}

TEST(SharedMemory, IsReadAfterItsMakerDied) {
  const SharedMemory memory = SharedMemory::create(4096).value();
  const pid_t child = ::fork();
  if (child == 0) {
    memory.bytes()[7] = std::byte{3};
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(memory.bytes()[7], std::byte{3});
}

TEST(SharedMemory, OfAnotherSizeOrWithoutSealsIsRefused) {
  const SharedMemory mine = SharedMemory::create(4096).value();
  EXPECT_EQ(SharedMemory::adopt(::dup(mine.descriptor()), 8192).error().code, ErrorCode::kProtocol);
  const int unsealed = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(unsealed, 4096), 0);
  EXPECT_EQ(SharedMemory::adopt(unsealed, 4096).error().code, ErrorCode::kProtocol);
}

TEST(SharedMemory, ThatCannotBeHadIsSaid) {
  const auto refused = SharedMemory::create(std::uint64_t{1} << 50);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().code == ErrorCode::kNoMemory || refused.error().code == ErrorCode::kIo);
}

}  // namespace
}  // namespace butterfly
