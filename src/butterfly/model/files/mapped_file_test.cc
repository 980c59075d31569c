#include "butterfly/model/files/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

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

  /// In place, as `cp` over a file does it.
  void overwrite(std::size_t bytes) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file << std::string(bytes, 'b');
  }

  static constexpr std::size_t kBytes = 5 * 4096;
  const std::string folder_;
};

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
