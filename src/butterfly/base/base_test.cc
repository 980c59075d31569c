#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "butterfly/base/bytes.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/base/ids.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/result.h"
#include "butterfly/base/test_folder_test.h"
#include "butterfly/base/units.h"

namespace butterfly {
namespace {

Result<int> parse_positive(int value) {
  if (value < 0) return make_error(ErrorCode::kInvalidArgument, "{} is below {}", value, 0);
  return value;
}

Result<int> twice(int value) {
  BF_ASSIGN_OR_RETURN(const int parsed, parse_positive(value));
  return 2 * parsed;
}

TEST(Result, CarriesTheValueOrTheErrorOfTheInnermostCall) {
  EXPECT_EQ(twice(4).value(), 8);
  const auto failed = twice(-1);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "-1 is below 0");
  EXPECT_NE(std::string(failed.error().where.function_name()).find("parse_positive"), std::string::npos);
}

TEST(Bytes, ReaderStopsAtTheEnd) {
  const std::uint32_t words[2] = {7, 9};
  ByteReader reader(std::as_bytes(std::span(words)));
  EXPECT_EQ(reader.read<std::uint32_t>(), 7u);
  EXPECT_FALSE(reader.read<std::uint64_t>());
  EXPECT_FALSE(reader.take(5));
  EXPECT_EQ(reader.take(4)->size(), 4u);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(Bytes, SizesThatOverflowAreRefused) {
  EXPECT_FALSE(checked_multiply(1ull << 40, 1ull << 40));
  EXPECT_EQ(checked_multiply(1ull << 20, 1ull << 20), 1ull << 40);
  EXPECT_FALSE(checked_add(~0ull, 1));
}

TEST(Digest, HexSurvivesAndOtherTextIsNone) {
  const std::array<std::byte, 4> bytes{std::byte{0}, std::byte{0x9f}, std::byte{0xa0}, std::byte{0xff}};
  const auto back = from_hex(to_hex(bytes));
  ASSERT_TRUE(back);
  EXPECT_TRUE(std::ranges::equal(*back, bytes));
  EXPECT_TRUE(from_hex("")->empty());
  for (const char* other : {"0", "0g", "FF", " 0", "0x", "00 "}) EXPECT_FALSE(from_hex(other)) << other;
}

TEST(Units, SizesReadAndPrint) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(parse_bytes("2G"), 2ull << 30);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536u);
  EXPECT_EQ(parse_bytes("24 GiB"), 24ull << 30);
  EXPECT_EQ(parse_bytes("24 Gibbons"), 0u);
  EXPECT_EQ(parse_bytes("two"), 0u);
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
}

/// -1 where nothing is open under this number.
int flags_of(int fd) {
  return ::fcntl(fd, F_GETFD);
}

TEST(Descriptor, TheLastOwnerClosesItOnce) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  Descriptor other(ends[1]);
  {
    Descriptor first(ends[0]);
    Descriptor second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), ends[0]);
    second = std::move(other);
    EXPECT_EQ(flags_of(ends[0]), -1) << "what it had before is closed";
    EXPECT_GE(flags_of(ends[1]), 0);
  }
  EXPECT_EQ(flags_of(ends[1]), -1);
  Descriptor kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fd = kept.release();
  kept = Descriptor();
  EXPECT_GE(flags_of(fd), 0) << "a released one is left open";
  ::close(fd);
}

TEST(ReadFile, GivesAllBytesOfFilesWhoseSizeIsKnownOrNot) {
  const TestFolder folder;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{300'001}}) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i % 251);
    const std::string path = folder.path() + "/file";
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(read_file(path, kAnySize).value(), content);
    EXPECT_EQ(read_file(path, size).value(), content) << "exactly as many bytes as may be";
    if (size == 0) continue;
    EXPECT_EQ(read_file(path, size - 1).error().code, ErrorCode::kBadData);
  }
  EXPECT_GT(read_file("/proc/self/maps", kAnySize).value().size(), 4096u) << "its size says 0";
}

TEST(ReadFile, WhatCannotBeReadIsNamed) {
  const TestFolder folder;
  const auto absent = read_file(folder.path() + "/absent", kAnySize);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(absent.error().message, folder.path() + "/absent: there is no such file");
  const auto directory = read_file(folder.path(), kAnySize);
  EXPECT_EQ(directory.error().code, ErrorCode::kBadData);
  EXPECT_EQ(directory.error().message, folder.path() + ": is a directory, expected a file");
  std::ofstream(folder.path() + "/long") << "0123456789";
  EXPECT_EQ(read_file(folder.path() + "/long", 9).error().message, folder.path() + "/long: is longer than 9 bytes");
}

}  // namespace
}  // namespace butterfly
