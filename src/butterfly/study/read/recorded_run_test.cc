#include "butterfly/study/read/recorded_run.h"

#include <gtest/gtest.h>

#include <fstream>

#include "butterfly/base/test_folder_test.h"
#include "butterfly/study/read/recording_builder_test.h"

namespace butterfly::study {
namespace {

using trace::Zone;

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(RecordedRun, SpansOfAThreadAreATreeWhateverTheirOrder) {
  RecordingBuilder builder;
  builder.span(Zone::kQkv, 2, 5).span(Zone::kStepDecode, 0, 10).span(Zone::kLayer, 1, 9).span(Zone::kNorm, 5, 6);
  builder.span(Zone::kSend, 3, 4, {}, 7);  // another thread
  const RecordedRun run = run_of({builder});
  const auto& spans = run.processes[0].spans;
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0].zone, Zone::kStepDecode);
  EXPECT_EQ(spans[0].parent, kNoParent);
  EXPECT_EQ(spans[1].zone, Zone::kLayer);
  EXPECT_EQ(spans[1].parent, 0);
  EXPECT_EQ(spans[2].parent, 1);
  EXPECT_EQ(spans[3].parent, 1);
  EXPECT_EQ(spans[4].parent, kNoParent) << "threads have trees of their own";
  EXPECT_EQ(spans[0].own_ns(), 2000u);
  EXPECT_EQ(spans[1].own_ns(), 4000u);
}

TEST(RecordedRun, OfTwoSpansOfTheSameTimeTheStepHoldsTheOperation) {
  RecordingBuilder builder;
  builder.span(Zone::kQkv, 0, 10).span(Zone::kStepDecode, 0, 10);
  const RecordedRun run = run_of({builder});
  EXPECT_EQ(run.processes[0].spans[0].zone, Zone::kStepDecode);
  EXPECT_EQ(run.processes[0].spans[1].parent, 0);
}

TEST(RecordedRun, ProcessesOfOneMachineShareItsClockAndOthersBringTheirOffset) {
  trace::Recording first = RecordingBuilder("generate").span(Zone::kStepTurn, 100, 200).build();
  first.begin_ns = 50'000;
  trace::Recording same = RecordingBuilder("worker").fact("node", "a").span(Zone::kStepDecode, 110, 120).build();
  same.begin_ns = 60'000;
  same.clock_offset_ns = 777;  // measured over a connection, and not needed
  same.clock_error_ns = 9;
  trace::Recording other = RecordingBuilder("worker").fact("node", "b").fact("boot_id", "far").build();
  other.spans = {{.begin_ns = 1'130'000, .end_ns = 1'140'000, .zone = Zone::kStepDecode}};
  other.begin_ns = 1'070'000;
  other.end_ns = 1'200'000;
  other.clock_offset_ns = -1'000'000;
  other.clock_error_ns = 20'000;
  const RecordedRun run = align({other, same, first}, {"b", "a", "c"});
  ASSERT_EQ(run.processes.size(), 3u);
  EXPECT_EQ(run.processes[0].name, "generate");
  EXPECT_EQ(run.processes[1].name, "worker a");
  EXPECT_EQ(run.processes[2].name, "worker b");
  EXPECT_EQ(run.processes[0].spans[0].begin_ns, 50'000u);
  EXPECT_EQ(run.processes[1].spans[0].begin_ns, 60'000u);
  EXPECT_EQ(run.processes[1].clock_error_ns, 0u);
  EXPECT_EQ(run.processes[2].spans[0].begin_ns, 80'000u);
  EXPECT_EQ(run.processes[2].clock_error_ns, 20'000u);
}

TEST(RecordedRun, NamesDiffer) {
  const RecordedRun run = run_of({RecordingBuilder("worker"), RecordingBuilder("worker"), RecordingBuilder("worker")});
  std::set<std::string> names;
  for (const Process& process : run.processes) names.insert(process.name);
  EXPECT_EQ(names.size(), 3u);
}

TEST(RecordedRun, AFolderWithoutRecordingsIsNamed) {
  const TestFolder folder;
  const auto run = read_run(folder.path());
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code, ErrorCode::kNotFound);
  EXPECT_NE(run.error().message.find(folder.path()), std::string::npos) << run.error().message;
  EXPECT_FALSE(read_run(folder / "nothing"));
}

TEST(RecordedRun, OneThatIsBrokenIsNamedAndTheOthersAreRead) {
  const TestFolder folder;
  const std::string good = trace::to_bytes(good_training(3).build());
  write_bytes(folder / "good.bftrace", good);
  write_bytes(folder / "half.bftrace", good.substr(0, good.size() / 2));
  write_bytes(folder / "other.txt", "no recording");
  const auto run = read_run(folder.path());
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->processes.size(), 1u);
  ASSERT_EQ(run->warnings.size(), 1u);
  EXPECT_NE(run->warnings[0].find("half.bftrace"), std::string::npos) << run->warnings[0];
  std::filesystem::remove(folder / "good.bftrace");
  const auto none = read_run(folder.path());
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("half.bftrace"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace butterfly::study
