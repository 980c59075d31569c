// What one process recorded: its spans, samples of its counters, and what is known of it; as a value, a file, a
// message. Plain data, not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/trace/trace.h"

namespace butterfly::trace {

/// The process and its machine at one moment. Sums count from the start of the process or of the machine.
struct Sample {
  std::uint64_t at_ns = 0;  // steady clock
  std::uint64_t resident_bytes = 0;
  std::uint64_t cpu_ns = 0;             // of all threads of the process
  std::uint64_t system_ns = 0;          // of that in the kernel: its sockets and files, pages that it maps and clears
  std::uint64_t run_queue_ns = 0;       // its threads could run, and had no CPU
  std::uint64_t machine_busy_ns = 0;    // all CPUs of the machine together
  std::uint64_t machine_stolen_ns = 0;  // by the host of a virtual machine
  std::uint64_t minor_faults = 0;
  std::uint64_t heap_bytes = 0;       // given out by malloc, to owners and others
  std::uint64_t heap_free_bytes = 0;  // held by malloc and given to nobody
  std::uint64_t mapped_bytes = 0;     // what owners hold beside malloc
  std::uint64_t file_bytes = 0;       // resident: the program, files that are mapped, memory shared with others
  double loop_ns = 0.0;               // a timed loop that has the processor's speed alone; 0: not measured this time
  std::array<std::uint64_t, static_cast<std::size_t>(Owner::kCount)> held_bytes{};
  std::array<std::uint64_t, static_cast<std::size_t>(Counter::kCount)> counters{};
};

struct Recording {
  std::map<std::string, std::string> facts{};  // "role", "node", "model.layers"
  std::uint64_t begin_ns = 0, end_ns = 0;      // steady clock of its machine
  /// To be added to its times to have those of the machine that asked, and the most by which that may be wrong.
  std::int64_t clock_offset_ns = 0;
  std::uint64_t clock_error_ns = 0;
  std::uint64_t lost = 0;     // spans that were overwritten before they were read
  std::uint64_t dropped = 0;  // spans at the beginning that did not fit
  std::vector<Span> spans{};  // by begin, an outer one before those inside it
  std::vector<Sample> samples{};

  std::string fact(std::string_view name) const;  // empty: not known
  double number(std::string_view name) const;     // 0: not known, or no number
};

/// docs/formats/recording.md.
std::string to_bytes(const Recording& recording);

/// Errors: kBadData naming what is wrong where the bytes are no such recording, or one of another version.
Result<Recording> parse_recording(ByteSpan bytes);

}  // namespace butterfly::trace
