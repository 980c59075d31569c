#include <gtest/gtest.h>

#include "butterfly/base/bytes.h"
#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
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

}  // namespace
}  // namespace butterfly
