#include "butterfly/base/text/one_line.h"

#include <gtest/gtest.h>

#include <sstream>

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

TEST(OneLine, KeepsWhatPeopleReadAndNothingThatSteersATerminal) {
  EXPECT_EQ(one_line("a worker said: no"), "a worker said: no");
  EXPECT_EQ(one_line("Grüße, 世界 \xF0\x9F\xA6\x8B"), "Grüße, 世界 \xF0\x9F\xA6\x8B");
  EXPECT_EQ(one_line("\x1B[2Jgone\r\nbutterfly: done\x07\x7F"), "?[2Jgone? butterfly: done??");
  EXPECT_EQ(one_line("\xC2\x9B"
                     "2J"),
            "?2J")
      << "the one byte form of escape [";
  EXPECT_EQ(one_line("\x9B"
                     "2J \xFF \xC3"),
            "?2J ? ?")
      << "bytes outside UTF-8";
  EXPECT_EQ(one_line("\xE2\x80\xAE"
                     "gpj\xE2\x81\xA6"),
            "?gpj?")
      << "turned writing";
  EXPECT_EQ(one_line("\xC0\xAF\xED\xA0\x80\xF4\x90\x80\x80"), "?????????") << "overlong, a surrogate, too large";
  EXPECT_EQ(one_line(std::string("\0", 1)), "?");
}

TEST(OneLine, IsWhatTheLogWrites) {
  std::ostringstream lines;
  redirect_log(&lines);
  log().error("a peer: {}", "x\n12:00:00.000 error forged \x1B[31m");
  redirect_log(nullptr);
  const std::string text = lines.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.find('\x1B'), std::string::npos);
  EXPECT_NE(text.find("a peer: x 12:00:00.000 error forged ?[31m"), std::string::npos) << text;
}

}  // namespace
}  // namespace butterfly
