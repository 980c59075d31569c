#include "butterfly/model/files/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "butterfly/base/descriptor.h"
#include "butterfly/model/files/pending_file.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// An empty folder with one file of five pages, for one test.
class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() : folder_(::testing::TempDir() + "mapped_file_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(path()) << std::string(kBytes, 'a');
    // Long ago, so that a write shows however coarse the file system's clock is.
    fs::last_write_time(path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/weights.bin"; }
  std::shared_ptr<const MappedFile> mapped() const { return MappedFile::open(path()).value(); }

  /// So that the file is only on disk, where its file system has one.
  void give_up_pages() const {
    const Descriptor file(::open(path().c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fsync(file.get()), 0);
    ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  /// In place, as `cp` over a file does it.
  void overwrite(std::size_t bytes) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file << std::string(bytes, 'b');
  }

  static constexpr std::size_t kBytes = 5 * 4096;
  const std::string folder_;
};

/// Pages of `part`, which begins with one, that are in memory.
std::size_t pages_in_memory(ByteSpan part) {
  std::vector<unsigned char> pages((part.size() + 4095) / 4096);
  if (::mincore(const_cast<std::byte*>(part.data()), part.size(), pages.data()) != 0) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
}

// Fails when nothing is asked for, or what lies elsewhere.
TEST_F(MappedFileTest, WhatIsBehindAPartIsReadBeforeItIsTouched) {
  constexpr std::size_t kPage = 4096;
  give_up_pages();
  const auto mapping = mapped();
  const ByteSpan bytes = mapping->bytes();
  if (pages_in_memory(bytes) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  mapping->read_behind(as_bytes(folder_), kBytes);
  mapping->read_behind(bytes, kBytes);  // nothing is behind all
  EXPECT_EQ(pages_in_memory(bytes), 0u);
  mapping->read_behind(bytes.first(kPage), 2 * kPage);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (pages_in_memory(bytes.subspan(kPage, 2 * kPage)) < 2 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(pages_in_memory(bytes.subspan(kPage, 2 * kPage)), 2u);
}

// Fails when one advice for the whole file is left to the system, which begins one request of it.
TEST_F(MappedFileTest, AFileIsReadAheadToItsEnd) {
  constexpr std::size_t kLong = std::size_t{48} << 20;
  std::ofstream(path()) << std::string(kLong, 'a');
  give_up_pages();
  const auto file = mapped();
  const ByteSpan bytes = file->bytes();
  if (pages_in_memory(bytes) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  file->read_ahead();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  constexpr std::size_t kMost = kLong / 4096 * 3 / 4;  // advice, which a system short of memory need not take
  while (pages_in_memory(bytes) < kMost && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(pages_in_memory(bytes), kMost);
}

TEST_F(MappedFileTest, AFileThatIsWrittenToIsNoticed) {
  const auto file = mapped();
  EXPECT_TRUE(file->unchanged());
  overwrite(kBytes);
  const Status changed = file->unchanged();
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, ErrorCode::kBadData);
  EXPECT_THAT(changed.error().message, HasSubstr(path() + ": changed while it was in use: 20480 bytes"));
  EXPECT_FALSE(files_unchanged(folder_));
  EXPECT_FALSE(files_unchanged(path()));
  EXPECT_TRUE(files_unchanged(folder_ + "/weights"));
  EXPECT_TRUE(files_unchanged("/elsewhere"));
}

TEST_F(MappedFileTest, AWriterThatPutsTheTimeBackIsNoticed) {
  const auto file = mapped();
  struct stat before {};
  ASSERT_EQ(::stat(path().c_str(), &before), 0);
  overwrite(10);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path().c_str(), times, 0), 0);
  EXPECT_FALSE(file->unchanged());
}

TEST_F(MappedFileTest, AnotherFileUnderItsNameAndAnotherNameAreNoChange) {
  const auto file = mapped();
  ASSERT_EQ(::chmod(path().c_str(), 0600), 0);
  EXPECT_TRUE(file->unchanged());
  fs::rename(path(), folder_ + "/old.bin");
  EXPECT_TRUE(file->unchanged());
  std::ofstream(path()) << "another";
  EXPECT_TRUE(file->unchanged());
  fs::remove(folder_ + "/old.bin");
  EXPECT_TRUE(file->unchanged());
  EXPECT_EQ(static_cast<char>(file->bytes().back()), 'a');
}

TEST_F(MappedFileTest, AFileThatGetsShorterEndsTheProcessWithASentence) {
  EXPECT_EXIT(
      {
        explain_lost_pages(2);
        const auto file = mapped();
        fs::resize_file(path(), 100);
        std::_Exit(static_cast<int>(file->bytes().back()));
      },
      ::testing::ExitedWithCode(2),
      "weights.bin: had 20480 bytes when it was opened and has 100 now: it changed while it was in use");
  EXPECT_EXIT(
      {
        explain_lost_pages(2);
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileTest, ThreadsThatMeetLostPagesAtOnceWriteOneSentence) {
  const auto one_line = ::testing::ResultOf([](const std::string& text) { return std::ranges::count(text, '\n'); }, 1);
  for (int round = 0; round < 20; ++round) {
    fs::resize_file(path(), kBytes);
    EXPECT_EXIT(
        {
          explain_lost_pages(2);
          const auto file = mapped();
          fs::resize_file(path(), 100);
          std::barrier start(4);
          std::atomic<int> sum{0};
          std::vector<std::jthread> readers;
          for (int i = 0; i < 4; ++i) {
            readers.emplace_back([&] {
              start.arrive_and_wait();
              sum += static_cast<int>(file->bytes().back());
            });
          }
        },
        ::testing::ExitedWithCode(2), one_line);
  }
}

TEST_F(MappedFileTest, APendingFileWritesIntoNoFileThatIsThere) {
  const std::string precious = folder_ + "/precious";
  std::ofstream(precious) << "precious";
  const std::string taken = path() + ".partial-" + std::to_string(::getpid()) + "-0";
  fs::create_hard_link(precious, taken);
  fs::create_symlink(precious, path() + ".partial");
  PendingFile file(path());
  ASSERT_TRUE(file.open());
  ASSERT_TRUE(file.write("0123456789", 10));
  ASSERT_TRUE(file.overwrite(3, "xy", 2));
  ASSERT_TRUE(file.commit());
  std::string text;
  std::ifstream(path()) >> text;
  EXPECT_EQ(text, "012xy56789");
  std::ifstream(precious) >> text;
  EXPECT_EQ(text, "precious");
  EXPECT_TRUE(fs::exists(taken)) << "another's";
  EXPECT_EQ(PendingFile("/dev/full").open().error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace butterfly
