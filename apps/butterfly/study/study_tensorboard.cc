#include "study/study_tensorboard.h"

#include <array>
#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/study/output/report_json.h"
#include "butterfly/train/run/event_file.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// What tells the members of a list apart: everything by which one is named.
std::string label_of(const Json& one) {
  constexpr std::array<const char*, 9> kNames{"process", "kind",   "name",  "type", "layer",
                                              "track",   "waiter", "other", "id"};
  std::string label;
  for (const char* key : kNames) {
    const auto found = one.find(key);
    if (found == one.end()) continue;
    // An operation's kind is no part of its name, a workload's is all of it.
    if (std::string_view(key) == "kind" && one.contains("name")) continue;
    std::string text;
    if (found->is_string()) text = found->get<std::string>();
    if (found->is_number_integer()) text = std::to_string(found->get<std::int64_t>());
    if (!text.empty() && text != label) label += (label.empty() ? "" : ", ") + text;
  }
  return label;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

/// Lists of anything but objects are no scalars: they are left out.
void add_numbers(const Json& value, const std::string& path, NamedNumbers& numbers) {
  if (value.is_number()) {
    numbers.emplace_back(path, value.get<double>());
  } else if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) add_numbers(inner, joined(path, key), numbers);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (!value[i].is_object()) continue;
      const std::string label = label_of(value[i]);
      add_numbers(value[i], joined(path, label.empty() ? std::to_string(i) : label), numbers);
    }
  }
}

Status add_at(EventFile& file, std::int64_t step, const NamedNumbers& numbers) {
  EventFile::Scalars scalars;
  for (const auto& [name, value] : numbers) {
    if (std::isfinite(value)) scalars.emplace_back(name, value);
  }
  return file.add(step, scalars);
}

Status add_steps(EventFile& file, const StudyFolder& read) {
  const study::StepSelection selection{.warmup = read.about.warmup, .measure = read.about.measure};
  for (const study::Workload& work : study::find_workloads(read.repeats.back(), selection)) {
    const study::Track& lead = work.tracks[work.lead];
    const std::string name = fmt::format("steps/{}/step_s", to_string(work.kind));
    std::int64_t number = lead.skipped;
    for (const study::Period& period : lead.periods) {
      BF_TRY(add_at(file, ++number, {{name, 1e-9 * static_cast<double>(period.wall_ns())}}));
    }
  }
  return {};
}

Status add_memory(EventFile& file, const study::Study& result) {
  constexpr double kMsPerS = 1e3;
  for (const study::MemoryUse& use : result.memory) {
    for (const study::MemoryPoint& point : use.timeline) {
      double held = 0.0;
      for (const double bytes : point.held) held += bytes;
      BF_TRY(add_at(file, std::llround(kMsPerS * point.at_s),
                    {{fmt::format("timeline/{}/resident_bytes", use.process), point.resident},
                     {fmt::format("timeline/{}/held_bytes", use.process), held}}));
    }
  }
  return {};
}

}  // namespace

Result<std::string> write_tensorboard(const std::string& directory, const StudyFolder& read) {
  BF_ASSIGN_OR_RETURN(EventFile file, EventFile::create(directory));
  Json report = parse_ordered_json(study::report_json(read.result, study::advise(read.result)));
  report.erase("version");
  NamedNumbers numbers;
  add_numbers(report, "", numbers);
  BF_TRY(add_at(file, 0, numbers));
  BF_TRY(add_steps(file, read));
  BF_TRY(add_memory(file, read.result));
  return file.path();
}

}  // namespace butterfly::app
