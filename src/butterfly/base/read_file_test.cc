#include "butterfly/base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace butterfly {
namespace {

class ReadFile : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& text) const {
    const std::string path = (folder_ / "file").string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("butterfly_read_file_{}", getpid());
};

TEST_F(ReadFile, GivesEveryByte) {
  EXPECT_EQ(read_file(file("")).value(), "");
  const std::string text = std::string("a\0\r\n\xFF", 5) + std::string((std::size_t{2} << 20) + 3, 'b');
  EXPECT_EQ(read_file(file(text)).value(), text);
}

TEST_F(ReadFile, RefusesWhatIsLongerThanAllowed) {
  const std::string path = file("12345");
  EXPECT_EQ(read_file(path, {.bytes_max = 5}).value(), "12345");
  EXPECT_EQ(read_file(path, {.bytes_max = 4}).error().message, path + ": is longer than 4 bytes");
}

TEST_F(ReadFile, NamesWhatCannotBeRead) {
  const auto folder = read_file(folder_.string(), {.what = "a plan"});
  EXPECT_EQ(folder.error().message, folder_.string() + ": is a directory, expected a plan");
  const auto absent = read_file((folder_ / "absent").string());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
}

TEST_F(ReadFile, ReadsAPipeToItsEnd) {
  const std::string path = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const std::string text((std::size_t{1} << 20) + 7, 'p');
  std::jthread writer([&] { std::ofstream(path, std::ios::binary) << text; });
  EXPECT_EQ(read_file(path).value(), text);
}

}  // namespace
}  // namespace butterfly
