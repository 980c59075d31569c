// Recordings of one run (*.bftrace of a folder) on one clock, each thread's spans as a tree. Plain data, not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/trace/recording.h"

namespace butterfly::study {

inline constexpr int kNoParent = -1;

/// Times are nanoseconds since the run began, on the clock that all processes of the run share.
struct SpanNode {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t children_ns = 0;  // of its time, in spans directly inside
  trace::Work work{};
  std::uint32_t thread = 0;
  trace::Zone zone = trace::Zone::kCount;
  int parent = kNoParent;  // index in Process::spans, smaller than its own

  std::uint64_t duration_ns() const { return end_ns - begin_ns; }
  std::uint64_t own_ns() const { return duration_ns() > children_ns ? duration_ns() - children_ns : 0; }
};

struct Process {
  std::string name;  // "worker b", "rank 1"; no two of a run are the same
  std::string file;
  std::map<std::string, std::string> facts;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t clock_error_ns = 0;
  std::uint64_t lost = 0, dropped = 0;
  std::vector<SpanNode> spans;         // by thread, then as trees: an outer one before those inside it
  std::vector<trace::Sample> samples;  // by time

  std::string fact(std::string_view key) const;  // empty: not known
  double number(std::string_view key) const;     // 0: not known, or no number
};

struct RecordedRun {
  std::vector<Process> processes;  // the one that asked first, then by role and name
  std::vector<std::string> warnings;

  std::uint64_t end_ns() const;
};

/// Puts the recordings on one clock: processes of one machine share it, others bring their offset.
RecordedRun align(std::vector<trace::Recording> recordings, const std::vector<std::string>& files);

/// Errors: kNotFound where the folder has no recording; those of parse_recording, naming the file, where none of them
/// can be read. One that cannot be read beside others that can is a warning.
Result<RecordedRun> read_run(const std::string& folder);

}  // namespace butterfly::study
