#include "butterfly/base/json.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

TEST(Json, TextThatIsNoneIsDiscarded) {
  for (const char* text : {"", "{", "[1,]", "nul", "{} {}", "\"\xff\""}) {
    EXPECT_TRUE(parse_json(text).is_discarded()) << text;
    EXPECT_TRUE(parse_ordered_json(text).is_discarded()) << text;
  }
}

TEST(Json, OrderedObjectsKeepTheOrderOfTheText) {
  const std::string text = R"({"b":1,"a":[true,null,-2.5]})";
  EXPECT_EQ(dump_json(parse_ordered_json(text)), text);
  EXPECT_EQ(dump_json(parse_json(text)), R"({"a":[true,null,-2.5],"b":1})");
}

TEST(Json, IndentsAndEscapesAsAsked) {
  EXPECT_EQ(dump_json(parse_json("[1,\"\u00e9\"]"), {.indent = 1}), "[\n 1,\n \"\u00e9\"\n]");
  EXPECT_EQ(dump_json(parse_json("[\"\u00e9\"]"), {.ascii = true}), R"(["\u00e9"])");
}

TEST(Json, TextThatIsNoUtf8IsReplacedNotThrown) {
  EXPECT_EQ(dump_json(nlohmann::json("a\xff")), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(dump_json(nlohmann::ordered_json("a\xff")), "\"a\xef\xbf\xbd\"");
}

TEST(Json, TheWatcherSeesEveryPartAndDropsSome) {
  const auto watch = [](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    return event != nlohmann::json::parse_event_t::key || value != "b";
  };
  EXPECT_EQ(dump_json(parse_json(R"({"a":1,"b":2})", watch)), R"({"a":1})");
}

}  // namespace
}  // namespace butterfly
