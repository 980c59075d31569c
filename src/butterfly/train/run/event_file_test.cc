#include "butterfly/train/run/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "butterfly/base/test_folder_test.h"

namespace butterfly {
namespace {

std::string event_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The messages of a file of records; empty where a length or a checksum is wrong.
std::vector<std::string> messages(std::string_view file) {
  std::vector<std::string> found;
  while (!file.empty()) {
    std::uint64_t size = 0;
    std::uint32_t of_size = 0, of_data = 0;
    if (file.size() < 12) return {};
    std::memcpy(&size, file.data(), 8);
    std::memcpy(&of_size, file.data() + 8, 4);
    if (file.size() < 16 + size || of_size != masked_crc32c(as_bytes(file.substr(0, 8)))) return {};
    std::memcpy(&of_data, file.data() + 12 + size, 4);
    if (of_data != masked_crc32c(as_bytes(file.substr(12, size)))) return {};
    found.emplace_back(file.substr(12, size));
    file.remove_prefix(16 + size);
  }
  return found;
}

TEST(EventFile, RecordsHaveLengthAndMaskedChecksums) {
  // crc32c("123456789") is 0xE3069283 (RFC 3720); rotated right by 15, plus 0xA282EAD8.
  EXPECT_EQ(masked_crc32c(as_bytes("123456789")), 0xC78AB0E5u);
  const std::string record = event_record("abc");
  EXPECT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_THAT(messages(record), ::testing::ElementsAre("abc"));
}

TEST(EventFile, BeginsWithItsVersionAndHoldsEveryValue) {
  const std::string folder = ::testing::TempDir() + "event_file/new";
  std::filesystem::remove_all(folder);
  auto events = EventFile::create(folder);
  ASSERT_TRUE(events) << events.error().message;
  ASSERT_TRUE(events->add(300, {{"train/loss", 1.5}, {"b", -2.0}}));
  EXPECT_THAT(events->path(), ::testing::HasSubstr("/events.out.tfevents."));
  const std::vector<std::string> found = messages(event_bytes(events->path()));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0], ::testing::EndsWith(std::string("\x1A\x0D") + "brain.Event:2"));
  EXPECT_EQ(found[0][0], 9) << "field 1, a double: the wall time";
  // Step 300 as a varint; the summary; two values, each a tag and a float.
  const std::string loss = std::string("\x0A\x0Atrain/loss\x15", 13) + std::string("\0\0\xC0\x3F", 4);
  const std::string b = std::string(
                            "\x0A\x01"
                            "b\x15",
                            4) +
                        std::string("\0\0\0\xC0", 4);
  const std::string summary =
      std::string("\x0A") + static_cast<char>(loss.size()) + loss + "\x0A" + static_cast<char>(b.size()) + b;
  EXPECT_EQ(found[1].substr(9), std::string("\x10\xAC\x02\x2A") + static_cast<char>(summary.size()) + summary);
}

// Fails when a zero is left out: TensorBoard would show no point of a loss that is 0, nor the first step.
TEST(EventFile, ZeroesAreWritten) {
  const TestFolder folder;
  auto events = EventFile::create(folder.path());
  ASSERT_TRUE(events) << events.error().message;
  ASSERT_TRUE(events->add(0, {{"a", 0.0}}));
  const std::vector<std::string> found = messages(event_bytes(events->path()));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].substr(9), std::string("\x10\0\x2A\x0A\x0A\x08\x0A\x01"
                                            "a\x15\0\0\0\0",
                                            14));
}

TEST(EventFile, APlaceThatCannotBeMadeIsNamed) {
  const auto events = EventFile::create("/proc/nowhere/events");
  ASSERT_FALSE(events);
  EXPECT_EQ(events.error().code, ErrorCode::kIo);
  EXPECT_THAT(events.error().message, ::testing::HasSubstr("/proc/nowhere/events"));
}

}  // namespace
}  // namespace butterfly
