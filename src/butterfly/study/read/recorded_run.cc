#include "butterfly/study/read/recorded_run.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "butterfly/base/bytes.h"
#include "butterfly/base/read_file.h"

namespace butterfly::study {
namespace {

constexpr std::string_view kSuffix = ".bftrace";

/// Of the same machine as the process that asked: the same clock, without an offset that was measured.
bool shares_clock(const trace::Recording& recording, const trace::Recording& reference) {
  const std::string boot = recording.fact("boot_id");
  return !boot.empty() && boot == reference.fact("boot_id");
}

/// The one whose clock the others were aligned to: it has no offset and no error.
std::size_t reference_of(const std::vector<trace::Recording>& recordings) {
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    if (recordings[i].clock_offset_ns == 0 && recordings[i].clock_error_ns == 0) return i;
  }
  return 0;
}

/// What is before the origin is at it; sums wrap as the clocks of other machines may.
std::uint64_t moved(std::uint64_t at_ns, std::int64_t offset_ns, std::uint64_t origin_ns) {
  const std::uint64_t at = at_ns + static_cast<std::uint64_t>(offset_ns) - origin_ns;
  return static_cast<std::int64_t>(at) < 0 ? 0 : at;
}

/// Within a thread by begin, the longer one first; of two that are the same, the one that holds the other by its kind.
void nest(std::vector<SpanNode>& spans) {
  const auto key = [](const SpanNode& span) {
    return std::tuple(span.thread, span.begin_ns, ~span.end_ns, trace::kind_of(span.zone));
  };
  std::ranges::stable_sort(spans, {}, key);
  std::vector<int> open;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    SpanNode& span = spans[i];
    const auto holds = [&span, &spans](int at) {
      const SpanNode& outer = spans[static_cast<std::size_t>(at)];
      return outer.thread == span.thread && outer.end_ns >= span.end_ns;
    };
    while (!open.empty() && !holds(open.back())) open.pop_back();
    span.parent = open.empty() ? kNoParent : open.back();
    if (!open.empty()) spans[static_cast<std::size_t>(open.back())].children_ns += span.duration_ns();
    open.push_back(static_cast<int>(i));
  }
}

std::string plain_name(const std::map<std::string, std::string>& facts) {
  const auto get = [&facts](const char* name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string() : found->second;
  };
  const std::string role = get("role").empty() ? "process" : get("role");
  const bool alone = get("ranks").empty() || get("ranks") == "1" || get("ranks.in_process") == get("ranks");
  if (!get("rank").empty() && !alone)
    return fmt::format("{} {}", role == "rank" ? "rank" : role + " rank", get("rank"));
  return get("node").empty() || get("node") == role ? role : role + " " + get("node");
}

void name_all(std::vector<Process>& processes) {
  std::set<std::string> taken;
  for (Process& process : processes) {
    process.name = plain_name(process.facts);
    if (taken.contains(process.name)) process.name += fmt::format(" ({})", process.fact("pid"));
    for (int n = 2; taken.contains(process.name); ++n) process.name = fmt::format("{} #{}", process.name, n);
    taken.insert(process.name);
  }
}

Process moved_process(trace::Recording& recording, std::int64_t offset_ns, std::uint64_t origin_ns) {
  Process process{.name = {},
                  .file = {},
                  .facts = std::move(recording.facts),
                  .begin_ns = moved(recording.begin_ns, offset_ns, origin_ns),
                  .end_ns = moved(recording.end_ns, offset_ns, origin_ns),
                  .lost = recording.lost,
                  .dropped = recording.dropped,
                  .spans = {},
                  .samples = std::move(recording.samples)};
  process.spans.reserve(recording.spans.size());
  for (const trace::Span& span : recording.spans) {
    const std::uint64_t begin_ns = moved(span.begin_ns, offset_ns, origin_ns);
    process.spans.push_back({.begin_ns = begin_ns,
                             .end_ns = std::max(begin_ns, moved(span.end_ns, offset_ns, origin_ns)),
                             .work = span.work,
                             .thread = span.thread,
                             .zone = span.zone});
  }
  recording.spans = {};
  nest(process.spans);
  for (trace::Sample& sample : process.samples) sample.at_ns = moved(sample.at_ns, offset_ns, origin_ns);
  std::ranges::stable_sort(process.samples, {}, &trace::Sample::at_ns);
  return process;
}

/// Numbers in names count as numbers.
bool before(const Process& a, const Process& b) {
  const auto key = [](const Process& p) {
    const bool asked = p.fact("role") != "worker" && p.fact("role") != "rank";
    return std::tuple(!asked, p.number("rank"), p.number("stage.first_layer"), p.fact("node"), p.file);
  };
  return key(a) < key(b);
}

}  // namespace

std::string Process::fact(std::string_view key) const {
  const auto found = facts.find(std::string(key));
  return found == facts.end() ? std::string() : found->second;
}

double Process::number(std::string_view key) const {
  const std::string text = fact(key);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? value : 0.0;
}

std::uint64_t RecordedRun::end_ns() const {
  std::uint64_t end = 0;
  for (const Process& process : processes) end = std::max(end, process.end_ns);
  return end;
}

RecordedRun align(std::vector<trace::Recording> recordings, const std::vector<std::string>& files) {
  RecordedRun run;
  if (recordings.empty()) return run;
  const trace::Recording& reference = recordings[reference_of(recordings)];
  std::vector<std::pair<std::int64_t, std::uint64_t>> clocks;  // offset, error
  for (const trace::Recording& recording : recordings) {
    clocks.emplace_back(recording.clock_offset_ns, recording.clock_error_ns);
    if (shares_clock(recording, reference)) clocks.back() = {0, 0};
  }
  std::uint64_t origin_ns = UINT64_MAX;
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    origin_ns = std::min(origin_ns, recordings[i].begin_ns + static_cast<std::uint64_t>(clocks[i].first));
  }
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    Process process = moved_process(recordings[i], clocks[i].first, origin_ns);
    process.clock_error_ns = clocks[i].second;
    process.file = i < files.size() ? files[i] : std::string();
    run.processes.push_back(std::move(process));
  }
  std::ranges::stable_sort(run.processes, before);
  name_all(run.processes);
  return run;
}

Result<RecordedRun> read_run(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() == kSuffix) paths.push_back(entry.path().string());
  }
  if (failed) return make_error(ErrorCode::kIo, "{}: {}", folder, failed.message());
  if (paths.empty()) {
    return make_error(ErrorCode::kNotFound, "{}: has no recording (a file that ends in {})", folder, kSuffix);
  }
  std::ranges::sort(paths);
  std::vector<trace::Recording> recordings;
  std::vector<std::string> files, refused;
  for (const std::string& path : paths) {
    BF_ASSIGN_OR_RETURN(const std::string text, read_file(path, kAnySize));
    auto recording = trace::parse_recording(as_bytes(text));
    if (!recording) {
      refused.push_back(fmt::format("{}: {}", path, recording.error().message));
      continue;
    }
    recordings.push_back(std::move(*recording));
    files.push_back(std::filesystem::path(path).filename().string());
  }
  if (recordings.empty()) return make_error(ErrorCode::kBadData, "{}", refused.front());
  RecordedRun run = align(std::move(recordings), files);
  run.warnings = std::move(refused);
  return run;
}

}  // namespace butterfly::study
