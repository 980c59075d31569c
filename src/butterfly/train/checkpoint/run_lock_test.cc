#include "butterfly/train/checkpoint/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

TEST(RunLock, ASecondRunIsRefusedWithTheFirstOnesProcess) {
  const TestFolder folder;
  const std::string directory = folder.path() + "/new/saved";
  {
    const auto first = RunLock::take(directory);
    ASSERT_TRUE(first) << first.error().message;
    std::filesystem::create_directory_symlink(directory, folder.path() + "/alias");
    for (const std::string& name : {directory, folder.path() + "/alias"}) {
      const auto second = RunLock::take(name);
      ASSERT_FALSE(second);
      EXPECT_EQ(second.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(second.error().message, HasSubstr(name + ": process " + std::to_string(::getpid()) + " on "));
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "the lock is gone with the run";
  EXPECT_TRUE(RunLock::take(directory));
}

TEST(RunLock, EndsWithAProcessThatIsKilled) {
  const TestFolder folder;
  const ::pid_t child = ::fork();
  if (child == 0) {
    const auto lock = RunLock::take(folder.path());
    ::_exit(lock ? 0 : 1);  // as if killed: nothing is released
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/.lock"));
  const auto next = RunLock::take(folder.path());
  EXPECT_TRUE(next) << next.error().message;
}

TEST(RunLock, WaitsForOneThatIsAboutToEnd) {
  const TestFolder folder;
  auto first = RunLock::take(folder.path());
  ASSERT_TRUE(first) << first.error().message;
  std::thread ending([&first] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const RunLock ended = std::move(*first);
  });
  const auto second = RunLock::take(folder.path());
  ending.join();
  EXPECT_TRUE(second) << second.error().message;
}

TEST(RunLock, TheFolderOfARunIsRefusedToAnotherWhileItLasts) {
  const TestFolder folder;
  RunConfig config = tiny_run();
  config.checkpoint.directory = folder.path();
  {
    const auto first = tiny_trainer(config);
    const auto second = RankTrainer::create(config, {});
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().message, HasSubstr(folder.path() + ": process "));
    ASSERT_TRUE(first->run({}, {}));
  }
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{12}));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/.lock"));
  config.resume = folder.path();
  EXPECT_TRUE(RankTrainer::create(config, {}));
}

}  // namespace
}  // namespace butterfly
