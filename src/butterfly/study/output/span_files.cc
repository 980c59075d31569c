#include "butterfly/study/output/span_files.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "butterfly/base/json.h"
#include "butterfly/study/analysis/roof.h"

namespace butterfly::study {
namespace {

std::string quoted(const std::string& text) {
  return dump_json(nlohmann::json(text));
}

/// The trace is written as text: a document of millions of events would take gigabytes as a tree.
class Events {
 public:
  void add(const std::string& event) {
    text_ += first_ ? "\n" : ",\n";
    text_ += event;
    first_ = false;
  }
  std::string finish() { return text_ + "\n]}\n"; }

 private:
  std::string text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool first_ = true;
};

double micro(std::uint64_t ns) {
  return 1e-3 * static_cast<double>(ns);
}

std::string event_of(const SpanNode& span, std::size_t pid) {
  const trace::Work& work = span.work;
  std::string arguments = fmt::format("\"number\":{}", work.number);
  if (work.in > 0 || work.out > 0) arguments += fmt::format(",\"in\":{},\"out\":{}", work.in, work.out);
  if (work.flops > 0) arguments += fmt::format(",\"flops\":{}", work.flops);
  if (work.bytes > 0) arguments += fmt::format(",\"bytes\":{}", work.bytes);
  if (const std::string type = type_name(work.type); !type.empty()) arguments += fmt::format(",\"type\":\"{}\"", type);
  if (work.pass != trace::Pass::kForward) arguments += fmt::format(",\"pass\":\"{}\"", to_string(work.pass));
  return fmt::format(R"({{"name":"{}","cat":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{{}}}}})",
                     to_string(span.zone), to_string(kind_of(span.zone)), micro(span.begin_ns),
                     micro(span.duration_ns()), pid, span.thread, arguments);
}

void add_names(const Process& process, std::size_t pid, Events& events) {
  events.add(fmt::format(R"({{"name":"process_name","ph":"M","ts":0,"pid":{},"tid":0,"args":{{"name":{}}}}})", pid,
                         quoted(process.name)));
  std::set<std::uint32_t> threads;
  for (const SpanNode& span : process.spans) threads.insert(span.thread);
  for (const std::uint32_t thread : threads) {
    const std::string named = process.fact(fmt::format("thread.{}", thread));
    events.add(fmt::format(R"({{"name":"thread_name","ph":"M","ts":0,"pid":{},"tid":{},"args":{{"name":{}}}}})", pid,
                           thread, quoted(named.empty() ? fmt::format("thread {}", thread) : named)));
  }
}

void add_memory(const Process& process, std::size_t pid, Events& events) {
  for (const trace::Sample& sample : process.samples) {
    std::string held = fmt::format("\"resident\":{}", sample.resident_bytes);
    for (std::size_t i = 0; i < sample.held_bytes.size(); ++i) {
      held += fmt::format(",\"{}\":{}", to_string(static_cast<trace::Owner>(i)), sample.held_bytes[i]);
    }
    events.add(fmt::format(R"({{"name":"memory","ph":"C","ts":{:.3f},"pid":{},"tid":0,"args":{{{}}}}})",
                           micro(sample.at_ns), pid, held));
  }
}

}  // namespace

std::string trace_events_json(const RecordedRun& run) {
  Events events;
  for (std::size_t i = 0; i < run.processes.size(); ++i) {
    const Process& process = run.processes[i];
    add_names(process, i + 1, events);
    for (const SpanNode& span : process.spans) events.add(event_of(span, i + 1));
    add_memory(process, i + 1, events);
  }
  return events.finish();
}

std::string folded_stacks(const RecordedRun& run) {
  std::map<std::string, std::uint64_t> sums;
  for (const Process& process : run.processes) {
    std::string name = process.name;
    for (char& c : name) c = c == ';' ? ',' : c;
    std::vector<std::string> paths(process.spans.size());
    for (std::size_t i = 0; i < process.spans.size(); ++i) {
      const SpanNode& span = process.spans[i];
      const std::string outer = span.parent == kNoParent ? name : paths[static_cast<std::size_t>(span.parent)];
      paths[i] = fmt::format("{};{}", outer, to_string(span.zone));
      if (span.work.pass != trace::Pass::kForward) paths[i] += fmt::format(" {}", to_string(span.work.pass));
      sums[paths[i]] += span.own_ns();
    }
  }
  std::string text;
  for (const auto& [path, ns] : sums) {
    if (ns > 0) text += fmt::format("{} {}\n", path, ns);
  }
  return text;
}

}  // namespace butterfly::study
