#include "butterfly/text/utf8.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

using Kind = Utf8Step::Kind;

TEST(Utf8, EveryScalarValueReadsBackAsWritten) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Kind::kCharacter) << static_cast<unsigned>(code);
    ASSERT_EQ(step.code_point, code);
    ASSERT_EQ(static_cast<std::size_t>(step.size), text.size());
    for (std::size_t part = 1; part < text.size(); ++part) {
      ASSERT_EQ(utf8_step(text.substr(0, part)).kind, Kind::kIncomplete) << static_cast<unsigned>(code);
    }
  }
}

TEST(Utf8, OverlongFormsSurrogatesAndValuesAboveTheLastAreInvalid) {
  for (const char* bytes :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"}) {
    EXPECT_EQ(utf8_step(bytes).kind, Kind::kInvalid) << bytes;
    EXPECT_EQ(utf8_step(bytes).size, 1) << bytes;
  }
}

TEST(Utf8, AnInterruptedCharacterIsInvalidUpToWhereItBroke) {
  EXPECT_EQ(utf8_step("\xE2\x82x").size, 2);
  EXPECT_EQ(utf8_step("\xF0\x9F\x99x").size, 3);
  EXPECT_EQ(utf8_step("\xF0\x9F\x99x").kind, Kind::kInvalid);
}

TEST(Utf8, TheFirstBadByteIsFoundWhereverItStands) {
  for (std::size_t offset = 0; offset < 40; ++offset) {
    std::string text(40, 'a');
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
    text[offset] = '\xFF';
    EXPECT_EQ(find_invalid_utf8(text), offset);
  }
  EXPECT_EQ(find_invalid_utf8("abcdefghi\xC3"), 9u);
  EXPECT_EQ(find_invalid_utf8("\xC3\xA9\xF0\x9F\x99\x82"), std::nullopt);
}

}  // namespace
}  // namespace butterfly
