// A worker that is recorded for its coordinator: what comes back, how well clocks agree, and who is told what.
#include "butterfly/cluster/membership/worker_recordings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/membership/fake_stage_test.h"
#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<RemoteRecording> begin_recording(const ThreadWorker& worker) {
  auto begun = RemoteRecording::begin(worker.address(), {}, after_ms(kLongMs));
  EXPECT_TRUE(begun) << begun.error().message;
  return begun ? std::move(*begun) : nullptr;
}

TEST(RemoteRecording, BringsSpansAndFactsOfTheWorkerOnOurClock) {
  if (trace::kRingSpans < 1000) GTEST_SKIP() << "a ring of " << trace::kRingSpans << " spans forgets this thread's";
  const ThreadWorker worker;
  trace::reset();
  const auto recording = begin_recording(worker);
  ASSERT_TRUE(recording);
  EXPECT_TRUE(trace::recording());
  trace::set_fact("model.name", std::string("tiny"));
  const std::uint64_t before = trace::now_ns();
  { const trace::Scope scope(trace::Zone::kQkv, {.number = 3, .flops = 17}); }
  const std::uint64_t after = trace::now_ns();
  const auto fetched = recording->fetch(after_ms(kLongMs));
  ASSERT_TRUE(fetched) << fetched.error().message;
  EXPECT_EQ(fetched->fact("model.name"), "tiny");
  EXPECT_EQ(fetched->fact("pid"), std::to_string(::getpid()));
  EXPECT_FALSE(fetched->fact("boot_id").empty());
  EXPECT_FALSE(fetched->samples.empty());
  const auto span = std::ranges::find(fetched->spans, trace::Zone::kQkv, &trace::Span::zone);
  ASSERT_NE(span, fetched->spans.end());
  EXPECT_EQ(span->work.flops, 17u);
  // Worker and test have one clock: the offset is the error, and what is claimed of it holds.
  const auto begin = static_cast<std::int64_t>(span->begin_ns) + fetched->clock_offset_ns;
  const auto error = static_cast<std::int64_t>(fetched->clock_error_ns);
  EXPECT_LE(std::abs(fetched->clock_offset_ns), error);
  EXPECT_GE(begin + error, static_cast<std::int64_t>(before));
  EXPECT_LE(begin - error, static_cast<std::int64_t>(after));
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 50'000'000);
  EXPECT_FALSE(trace::recording()) << "nobody fetches what comes after";
}

TEST(RemoteRecording, IsFetchedInPiecesWhereItIsLong) {
  const ThreadWorker worker;
  trace::reset();
  const auto recording = begin_recording(worker);
  ASSERT_TRUE(recording);
  constexpr std::uint32_t kSpans = 40'000;  // of 48 bytes: four pieces
  for (std::uint32_t i = 0; i < kSpans; ++i) {
    trace::record(trace::Zone::kNorm, i, i + 1, {.number = i});
    if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(6));  // for the recorder to drain the ring
  }
  const auto fetched = recording->fetch(after_ms(kLongMs));
  ASSERT_TRUE(fetched) << fetched.error().message;
  const auto norms = std::ranges::count(fetched->spans, trace::Zone::kNorm, &trace::Span::zone);
  EXPECT_EQ(static_cast<std::uint64_t>(norms) + fetched->lost, kSpans);
#ifndef BUTTERFLY_TINY
  EXPECT_GT(norms, 25'000) << "more than one piece holds";
#endif
}

TEST(RemoteRecording, ASecondClientIsToldSoAndTheFirstGoesOn) {
  const ThreadWorker worker;
  trace::reset();
  const auto first = begin_recording(worker);
  ASSERT_TRUE(first);
  const auto second = RemoteRecording::begin(worker.address(), {}, after_ms(kLongMs));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("already"));
  EXPECT_TRUE(first->fetch(after_ms(kLongMs)));
}

TEST(RemoteRecording, EndsWithItsConnection) {
  const ThreadWorker worker;
  trace::reset();
  begin_recording(worker).reset();
  const Deadline deadline = after_ms(kLongMs);
  while (trace::recording() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(trace::recording());
  std::unique_ptr<RemoteRecording> again;
  while (!again && std::chrono::steady_clock::now() < deadline) {
    auto begun = RemoteRecording::begin(worker.address(), {}, after_ms(kLongMs));
    if (begun) again = std::move(*begun);
  }
  EXPECT_TRUE(again) << "the turn is given back";
}

/// Answers like a worker whose recording is what the test says, one answer after the other.
class FakeRecorder {
 public:
  explicit FakeRecorder(std::vector<control::Piece> pieces, std::uint64_t ahead_ns = 0)
      : listener_(Listener::create({.address = "127.0.0.1:0"}).value()),
        pieces_(std::move(pieces)),
        ahead_ns_(ahead_ns) {
    thread_ = std::jthread([this] { serve(); });
  }
  ~FakeRecorder() { listener_->close(); }
  std::string address() const { return listener_->address(); }

 private:
  void serve() {
    auto arrival = listener_->accept(after_ms(kLongMs));
    if (!arrival) return;
    ControlLink link(std::shared_ptr<Channel>(std::move(arrival->channel)));
    for (std::size_t piece = 0;;) {
      const auto question = link.receive(after_ms(kLongMs));
      if (!question) return;
      control::ControlMessage said;
      if (question->has_recording_wanted()) said.mutable_recording_begun();
      if (question->has_clock_wanted()) said.mutable_clock()->set_steady_ns(trace::now_ns() + ahead_ns_);
      if (question->has_piece_wanted()) *said.mutable_piece() = pieces_[std::min(piece++, pieces_.size() - 1)];
      if (!link.send(said)) return;
    }
  }

  std::unique_ptr<Listener> listener_;
  const std::vector<control::Piece> pieces_;
  const std::uint64_t ahead_ns_;
  std::jthread thread_;
};

Error fetch_error(std::vector<std::pair<std::uint64_t, std::string>> said) {
  std::vector<control::Piece> pieces;
  for (auto& [bytes, data] : said) {
    control::Piece& piece = pieces.emplace_back();
    piece.set_bytes(bytes);
    piece.set_data(std::move(data));
  }
  const FakeRecorder recorder(std::move(pieces));
  auto begun = RemoteRecording::begin(recorder.address(), {}, after_ms(kLongMs));
  if (!begun) return begun.error();
  const auto fetched = (*begun)->fetch(after_ms(kLongMs));
  return fetched ? Error{} : fetched.error();
}

TEST(RemoteRecording, WhatAWorkerSaysOfItsSizeIsNotBelieved) {
  EXPECT_THAT(fetch_error({{std::uint64_t{1} << 40, "x"}}).message, HasSubstr("limit"));
  EXPECT_THAT(fetch_error({{10, ""}}).message, HasSubstr("0 bytes"));
  EXPECT_THAT(fetch_error({{10, "more than ten bytes"}}).message, HasSubstr("10 are left"));
  EXPECT_THAT(fetch_error({{10, "12345"}, {11, "678901"}}).message, HasSubstr("11"));
  EXPECT_EQ(fetch_error({{10, "1234567890"}}).code, ErrorCode::kBadData) << "no recording";
}

TEST(RemoteRecording, AClockThatIsAheadIsSetBack) {
  constexpr std::int64_t kAheadNs = 3'000'000'000;
  control::Piece whole;
  whole.set_data(to_bytes(trace::Recording{.begin_ns = 1, .end_ns = 2}));
  whole.set_bytes(whole.data().size());
  const FakeRecorder recorder({whole}, kAheadNs);
  const auto begun = RemoteRecording::begin(recorder.address(), {}, after_ms(kLongMs));
  ASSERT_TRUE(begun);
  const auto fetched = (*begun)->fetch(after_ms(kLongMs));
  ASSERT_TRUE(fetched) << fetched.error().message;
  EXPECT_LE(std::abs(fetched->clock_offset_ns + kAheadNs), static_cast<std::int64_t>(fetched->clock_error_ns));
}

TEST(ClockOffset, CoversEveryComparisonThatWasGoodEnough) {
  EXPECT_EQ(offset_over({}).error_ns, 0u);
  // Clocks that differ by 40 ns more; the last comparison took long and says nothing.
  const ClockOffset all = offset_over({{100, 20}, {140, 30}, {9'000'000, 9'500'000}});
  EXPECT_EQ(all.offset_ns, 120);
  EXPECT_EQ(all.error_ns, 50u) << "20 between them, and 30 of the second";
}

/// BUTTERFLY_RECORD as long as this lives; a folder of its own.
class RecordingFolder {
 public:
  RecordingFolder() {
    std::filesystem::create_directories(path);
    ::setenv(kRecordFolder, path.c_str(), 1);
  }
  ~RecordingFolder() {
    ::unsetenv(kRecordFolder);
    std::filesystem::remove_all(path);
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& file : std::filesystem::directory_iterator(path)) found.push_back(file.path());
    return found;
  }
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / ("recordings" + std::to_string(::getpid()));
};

TEST(WorkerRecordings, AreWrittenBesideTheCoordinatorsWhenTheMembershipEnds) {
  const RecordingFolder folder;
  const ThreadWorker worker;
  trace::reset();
  auto membership = membership_of({worker.address()});
  EXPECT_TRUE(folder.files().empty());
  membership.reset();
  const auto files = folder.files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(files[0].filename().string(), HasSubstr("worker-127.0.0.1_"));
  std::ifstream file(files[0], std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto recording = trace::parse_recording(as_bytes(bytes));
  ASSERT_TRUE(recording) << recording.error().message;
  EXPECT_EQ(recording->fact("node"), worker.address());
  EXPECT_EQ(recording->fact("role"), "worker") << "else reports call it a process";
  EXPECT_GT(recording->clock_error_ns, 0u);
}

TEST(WorkerRecordings, OfAWorkerThatDiesAreMissingAndNothingElse) {
  const RecordingFolder folder;
  auto worker = std::make_unique<ThreadWorker>();
  trace::reset();
  auto membership = membership_of({worker->address()});
  worker.reset();
  membership.reset();
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace butterfly
