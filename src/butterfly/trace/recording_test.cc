#include "butterfly/trace/recording.h"

#include <gtest/gtest.h>

#include <string>

namespace butterfly::trace {
namespace {

Recording example() {
  Recording recording{.facts = {{"role", "worker"}, {"model.layers", "16"}, {"odd", "1x"}},
                      .begin_ns = 5,
                      .end_ns = 900,
                      .clock_offset_ns = -7,
                      .clock_error_ns = 3,
                      .lost = 11,
                      .dropped = 12};
  recording.spans = {{.begin_ns = 10,
                      .end_ns = 20,
                      .work = {.number = 1, .in = 2, .out = 3, .flops = 4, .bytes = 5},
                      .thread = 300,
                      .zone = Zone::kQkv},
                     {.begin_ns = 30,
                      .end_ns = 30,
                      .work = {.type = 9, .pass = Pass::kWeightGradient},
                      .thread = 0,
                      .zone = Zone::kWaitStep}};
  Sample sample{.at_ns = 40, .resident_bytes = 41, .loop_ns = 2.5};
  sample.held_bytes.back() = 77;
  sample.counters.back() = 78;
  recording.samples = {sample};
  return recording;
}

TEST(Recording, IsTheSameAfterAWayThroughBytes) {
  const Recording before = example();
  const auto after = parse_recording(as_bytes(to_bytes(before)));
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->facts, before.facts);
  EXPECT_EQ(after->clock_offset_ns, -7);
  EXPECT_EQ(after->clock_error_ns, 3u);
  EXPECT_EQ(after->begin_ns, 5u);
  EXPECT_EQ(after->end_ns, 900u);
  EXPECT_EQ(after->lost, 11u);
  EXPECT_EQ(after->dropped, 12u);
  EXPECT_EQ(to_bytes(*after), to_bytes(before));
  EXPECT_EQ(after->spans[0].thread, 300u);
  EXPECT_EQ(after->spans[1].work.pass, Pass::kWeightGradient);
  EXPECT_EQ(after->number("model.layers"), 16.0);
  EXPECT_EQ(after->number("odd"), 0.0);
  EXPECT_EQ(after->fact("none"), "");
}

TEST(Recording, EveryTruncationAndWhatFollowsTheEndIsRefused) {
  const std::string whole = to_bytes(example());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_FALSE(parse_recording(as_bytes(std::string_view(whole).substr(0, size)))) << size;
  }
  EXPECT_FALSE(parse_recording(as_bytes(whole + "x")));
}

TEST(Recording, CountsThatNoBytesFollowAreRefusedBeforeMemoryIsTaken) {
  const Recording empty{};
  std::string bytes = to_bytes(empty);
  bytes.replace(bytes.size() - 16, 8, std::string(8, '\xff'));  // spans
  const auto parsed = parse_recording(as_bytes(bytes));
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("spans"), std::string::npos) << parsed.error().message;
}

TEST(Recording, AnotherVersionsZonesAreRefused) {
  std::string bytes = to_bytes(example());
  bytes.replace(bytes.find("lm_head"), 7, "lm_hear");
  const auto parsed = parse_recording(as_bytes(bytes));
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("another version"), std::string::npos) << parsed.error().message;
}

}  // namespace
}  // namespace butterfly::trace
