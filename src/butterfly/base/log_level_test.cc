#include "butterfly/base/log_level.h"

#include <gtest/gtest.h>

#include <sstream>

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

TEST(LogLevel, DecidesWhichLinesAreWrittenUntilItIsPutBack) {
  std::ostringstream lines;
  redirect_log(&lines);
  const std::string before = set_log_level("debug");
  log().debug("first");
  EXPECT_EQ(set_log_level("off"), "debug");
  log().error("second");
  EXPECT_EQ(set_log_level("info"), "off");
  log().info("third");
  log().debug("fourth");
  EXPECT_EQ(set_log_level(before), "info");
  redirect_log(nullptr);
  const std::string text = lines.str();
  EXPECT_NE(text.find("debug first\n"), std::string::npos) << text;
  EXPECT_NE(text.find("info third\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("second"), std::string::npos) << text;
  EXPECT_EQ(text.find("fourth"), std::string::npos) << text;
}

}  // namespace
}  // namespace butterfly
