#include "butterfly/study/advice/remedies.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "butterfly/study/advice/causes.h"

namespace butterfly::study {
namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

bool trains(const Study& study) {
  return std::ranges::any_of(study.workloads, [](const auto& work) { return work.kind == WorkKind::kTrain; });
}

Flags micro_batch_flags(const Study& study) {
  const int larger = larger_micro_batch(study);
  return larger > 0 ? Flags{{"--micro-batch", std::to_string(larger)}} : Flags{};
}

Flags flags_for(const Study& study, const Cause& cause) {
  const bool crowded = cause.id == "threads_share_cpus" && cause.effort == Effort::kFlag && study.processes.size() == 1;
  if (cause.id == "idle_cpus" || crowded) return {{"--threads", "0"}};
  const bool fuses = cause.remedy.starts_with("--fusion all");
  if (trains(study) && fuses) return {{"--fusion", "all"}};
  if (cause.id == "launch_overhead" && cause.remedy.starts_with("--threads 1")) return {{"--threads", "1"}};
  if (cause.id == "launch_overhead" && cause.remedy.starts_with("a larger")) return micro_batch_flags(study);
  if (cause.id == "small_batch" || cause.id == "low_utilisation") return micro_batch_flags(study);
  const bool link = cause.id == "thin_link" || cause.id == "communication_bound";
  if (trains(study)) return link ? Flags{{"--compression", "bf16"}} : Flags{};
  if (cause.id == "attention_memory") return {{"--kv-type", "q8_0"}};
  if (cause.id == "straggler") return {{"--split", "balanced"}};
  if (link) return {{"--compress", "zstd"}};
  return {};
}

std::vector<std::string> environment_for(const Cause& cause) {
  if (cause.id == "fragmentation") return {"MALLOC_ARENA_MAX=2"};
  if (cause.id == "allocation_in_loop") {
    return {"MALLOC_TRIM_THRESHOLD_=1073741824", "MALLOC_MMAP_THRESHOLD_=1073741824"};
  }
  return {};
}

/// The names under which the commands know a flag.
std::vector<std::string> names_of(const std::string& flag) {
  static const std::map<std::string, std::vector<std::string>> kOthers{
      {"--threads", {"-t"}}, {"--micro-batch", {"--micro_batch"}}, {"--kv-type", {"--kv_type"}}};
  std::vector<std::string> names{flag};
  if (const auto found = kOthers.find(flag); found != kOthers.end()) {
    names.insert(names.end(), found->second.begin(), found->second.end());
  }
  return names;
}

void remove_flag(std::vector<std::string>& words, const std::string& name) {
  for (std::size_t at = 0; at < words.size();) {
    if (words[at] == name) {
      const std::size_t end = std::min(at + 2, words.size());
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(at), words.begin() + static_cast<std::ptrdiff_t>(end));
    } else if (words[at].starts_with(name + "=")) {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      ++at;
    }
  }
}

/// One remedy for two causes saves the time of both.
void add_gain(Remedy& remedy, const Remedy& other) {
  constexpr double kLeast = 0.05;  // of the time: what is left
  constexpr std::string_view kLaunches = "launch_overhead";
  // Launches are inside the operations that the other cause counts whole.
  const bool inside = remedy.cause == kLaunches || other.cause == kLaunches;
  const double both = 1.0 / std::max(kLeast, 1.0 / remedy.speedup + 1.0 / other.speedup - 1.0);
  const double speedup = inside ? std::max(remedy.speedup, other.speedup) : both;
  const double factor = speedup / remedy.speedup;
  remedy.cause += ", " + other.cause;
  remedy.speedup = speedup;
  remedy.speedup_low *= factor;
  remedy.speedup_high *= factor;
}

}  // namespace

std::vector<Remedy> remedies(const Study& study, const Advice& advice) {
  std::vector<Remedy> found;
  for (const Cause& cause : advice.causes) {
    Remedy one{.cause = cause.id,
               .workload = cause.workload,
               .flags = flags_for(study, cause),
               .environment = environment_for(cause),
               .speedup = cause.speedup,
               .speedup_low = cause.speedup_low,
               .speedup_high = cause.speedup_high};
    if (one.flags.empty() && one.environment.empty()) continue;
    const auto same = std::ranges::find_if(found, [&one](const Remedy& other) {
      return other.flags == one.flags && other.environment == one.environment && other.workload == one.workload;
    });
    if (same == found.end()) {
      found.push_back(std::move(one));
    } else {
      add_gain(*same, one);
    }
  }
  return found;
}

std::vector<std::string> with_flags(std::vector<std::string> words, const Remedy& remedy) {
  for (const auto& [flag, value] : remedy.flags) {
    for (const std::string& name : names_of(flag)) remove_flag(words, name);
    words.push_back(flag);
    words.push_back(value);
  }
  return words;
}

std::string describe(const Remedy& remedy) {
  std::string text;
  for (const auto& [flag, value] : remedy.flags) text += (text.empty() ? "" : " ") + flag + " " + value;
  for (const std::string& variable : remedy.environment) text += (text.empty() ? "" : " ") + variable;
  return text;
}

}  // namespace butterfly::study
