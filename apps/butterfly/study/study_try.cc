// butterfly study try: applies remedies one by one, and says how well they were predicted.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/statistics.h"
#include "butterfly/base/units.h"
#include "butterfly/study/advice/remedies.h"
#include "study/study.h"
#include "study/study_child.h"

namespace butterfly::app {
namespace {

using study::Remedy;

struct TryCommand {
  std::string folder = "study-try";
  std::vector<std::string> flags;  // remedies of one's own
  int warmup = 10, measure = 50, rounds = 3, most = 4;
  bool json = false;
  std::vector<std::string> words;
};

/// One run of one variant.
struct Run {
  study::Study result;
  std::string printed;
  double peak_bytes = 0.0;  // resident, of all processes
};

struct Trial {
  Remedy remedy;
  std::vector<Run> runs;          // one of each round
  std::vector<Remedy> predicted;  // from each round's run without it, where that advises it
};

constexpr std::uint64_t kPrintedMax = 64 << 20;

Result<Run> run_once(const TryCommand& command, const Remedy& remedy, const std::string& folder) {
  const std::string recordings = folder + "/recordings";
  BF_TRY(make_empty(recordings));
  const std::string output = folder + "/stdout.txt";
  const ChildRun child{.words = with_flags(command.words, remedy),
                       .recordings = recordings,
                       .environment = remedy.environment,
                       .output = output};
  BF_ASSIGN_OR_RETURN(const int code, run_recorded(child));
  if (code != 0) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' ended with status {}", as_shell(child.words), code);
  }
  BF_TRY(write_about(folder, {.command = as_shell(child.words), .warmup = command.warmup, .measure = command.measure}));
  BF_ASSIGN_OR_RETURN(StudyFolder read, read_study(folder, -1, -1));
  Run run{.result = std::move(read.result), .printed = {}};
  BF_ASSIGN_OR_RETURN(run.printed, read_file(output, kPrintedMax));
  for (const study::MemoryUse& use : run.result.memory) run.peak_bytes += use.peak;
  return run;
}

/// Seconds of one step of the kind that the remedy is for; of several kinds those that took most time. 0: there are
/// none.
double step_seconds(const study::Study& result, const std::string& workload) {
  double seconds = 0.0, most = -1.0;
  for (const study::WorkloadStudy& work : result.workloads) {
    if (!workload.empty() && workload != to_string(work.kind)) continue;
    const double wall = work.tracks[work.lead].wall_s;
    if (wall > most) {
      most = wall;
      seconds = work.step_s.mean;
    }
  }
  return seconds;
}

std::vector<double> speedups(const Trial& before, const Trial& after) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < std::min(before.runs.size(), after.runs.size()); ++round) {
    const double with = step_seconds(after.runs[round].result, after.remedy.workload);
    const double without = step_seconds(before.runs[round].result, after.remedy.workload);
    if (with > 0.0 && without > 0.0) ratios.push_back(without / with);
  }
  return ratios;
}

double median_peak(const Trial& trial) {
  std::vector<double> peaks;
  for (const Run& run : trial.runs) peaks.push_back(run.peak_bytes);
  return median(peaks);
}

bool is_deterministic(const Trial& trial) {
  return std::ranges::all_of(trial.runs, [&](const Run& run) { return run.printed == trial.runs.front().printed; });
}

struct Outcome {
  double speedup = 1.0, least = 1.0, most = 1.0;
  bool as_predicted = false;  // inside the interval
  bool much_faster = false;   // by 30 %
  bool memory_stable = false, same_output = false, deterministic = false;
  bool inconclusive = false;
};

Outcome judge(const Trial& before, const Trial& after) {
  const std::vector<double> ratios = speedups(before, after);
  Outcome outcome;
  if (ratios.empty()) return Outcome{.inconclusive = true};
  outcome.speedup = median(ratios);
  outcome.least = *std::ranges::min_element(ratios);
  outcome.most = *std::ranges::max_element(ratios);
  outcome.as_predicted = outcome.speedup >= after.remedy.speedup_low && outcome.speedup <= after.remedy.speedup_high;
  outcome.much_faster = outcome.least > 1.3;
  outcome.memory_stable = median_peak(after) <= 1.05 * median_peak(before) + (8 << 20);
  outcome.same_output = before.runs.front().printed == after.runs.front().printed;
  outcome.deterministic = is_deterministic(after);
  const auto spoilt = [](const Run& run) { return run.result.quality.trust == study::Trust::kInconclusive; };
  outcome.inconclusive = std::ranges::any_of(before.runs, spoilt) || std::ranges::any_of(after.runs, spoilt);
  return outcome;
}

std::vector<Remedy> own_remedies(const TryCommand& command) {
  std::vector<Remedy> found;
  for (const std::string& text : command.flags) {
    const std::size_t space = text.find(' ');
    Remedy one{.cause = "asked for"};
    if (space == std::string::npos && !text.starts_with("-")) {
      one.environment.push_back(text);
    } else {
      one.flags.emplace_back(text.substr(0, space), space == std::string::npos ? "true" : text.substr(space + 1));
    }
    found.push_back(std::move(one));
  }
  return found;
}

/// What this run's study says of the remedies that are tried. The machine is not the same in each round, so a remedy
/// is judged by the median of its rounds' predictions: each is made before it is tried in that round.
void predict_again(const study::Study& result, std::vector<Trial>& trials) {
  for (const Remedy& one : remedies(result, study::advise(result))) {
    for (Trial& trial : trials) {
      if (!trial.remedy.cause.empty() && describe(trial.remedy) == describe(one)) trial.predicted.push_back(one);
    }
  }
}

void take_medians(Trial& trial) {
  const auto middle = [&trial](double Remedy::*value) {
    std::vector<double> values;
    for (const Remedy& one : trial.predicted) values.push_back(one.*value);
    return median(values);
  };
  if (trial.predicted.empty()) return;
  trial.remedy.speedup = middle(&Remedy::speedup);
  trial.remedy.speedup_low = middle(&Remedy::speedup_low);
  trial.remedy.speedup_high = middle(&Remedy::speedup_high);
}

/// The command as it is, then each remedy, and so again in each round, so that what disturbs the machine meets all.
Result<std::vector<Trial>> run_trials(const TryCommand& command) {
  std::vector<Trial> trials(1);
  for (int round = 1; round <= command.rounds; ++round) {
    for (std::size_t at = 0; at < trials.size(); ++at) {
      std::fprintf(stderr, "study: round %d of %d, %s\n", round, command.rounds,
                   at == 0 ? "as it is" : describe(trials[at].remedy).c_str());
      const std::string folder =
          fmt::format("{}/{}/{}", command.folder, at == 0 ? "before" : fmt::format("{}", at), round);
      BF_ASSIGN_OR_RETURN(Run run, run_once(command, trials[at].remedy, folder));
      trials[at].runs.push_back(std::move(run));
      const bool predicts = at == 0 && command.flags.empty();
      if (predicts && round > 1) predict_again(trials[0].runs.back().result, trials);
      if (round > 1 || at > 0) continue;
      const study::Study& first = trials[0].runs[0].result;
      std::vector<Remedy> wanted =
          command.flags.empty() ? remedies(first, study::advise(first)) : own_remedies(command);
      if (std::ssize(wanted) > command.most) wanted.resize(static_cast<std::size_t>(command.most));
      for (Remedy& one : wanted) trials.push_back({.remedy = std::move(one), .runs = {}, .predicted = {}});
      if (trials.size() == 1) return trials;
      if (predicts) predict_again(first, trials);
    }
  }
  std::ranges::for_each(trials, take_medians);
  return trials;
}

const char* word(bool yes) {
  return yes ? "yes" : "no";
}

void print(const std::vector<Trial>& trials) {
  if (trials.size() == 1) {
    std::printf("Nothing to try: the study found no cause that a flag or a variable cures.\n");
    return;
  }
  std::printf("%-34s %-24s %-24s %-6s %-6s %-6s %-6s %s\n", "remedy", "predicted", "reached (least to most)", "within",
              ">1.3x", "memory", "output", "deterministic");
  for (std::size_t at = 1; at < trials.size(); ++at) {
    const Remedy& remedy = trials[at].remedy;
    const Outcome outcome = judge(trials[0], trials[at]);
    const std::string predicted =
        remedy.speedup == 1.0 && remedy.speedup_high == 1.0
            ? "-"
            : fmt::format("{:.2f} ({:.2f} to {:.2f})", remedy.speedup, remedy.speedup_low, remedy.speedup_high);
    std::printf("%-34s %-24s %-24s %-6s %-6s %-6s %-6s %s%s\n", describe(remedy).c_str(), predicted.c_str(),
                fmt::format("{:.2f} ({:.2f} to {:.2f})", outcome.speedup, outcome.least, outcome.most).c_str(),
                predicted == "-" ? "-" : word(outcome.as_predicted), word(outcome.much_faster),
                outcome.memory_stable ? "stable" : "more", outcome.same_output ? "same" : "other",
                word(outcome.deterministic), outcome.inconclusive ? "  inconclusive: the machine was disturbed" : "");
  }
  std::printf(
      "Each remedy alone, in turns with the command as it is; ratios of seconds per step, median of the "
      "rounds.\n");
}

nlohmann::ordered_json to_json(const TryCommand& command, const std::vector<Trial>& trials) {
  nlohmann::ordered_json json{{"command", as_shell(command.words)}, {"rounds", command.rounds}};
  json["remedies"] = nlohmann::ordered_json::array();
  for (std::size_t at = 1; at < trials.size(); ++at) {
    const Remedy& remedy = trials[at].remedy;
    const Outcome outcome = judge(trials[0], trials[at]);
    json["remedies"].push_back(
        {{"cause", remedy.cause},
         {"remedy", describe(remedy)},
         {"predicted", {{"speedup", remedy.speedup}, {"low", remedy.speedup_low}, {"high", remedy.speedup_high}}},
         {"reached", {{"speedup", outcome.speedup}, {"least", outcome.least}, {"most", outcome.most}}},
         {"as_predicted", outcome.as_predicted},
         {"gates",
          {{"over_30_percent_faster", outcome.much_faster},
           {"memory_stable", outcome.memory_stable},
           {"same_output", outcome.same_output},
           {"deterministic", outcome.deterministic}}},
         {"inconclusive", outcome.inconclusive}});
  }
  return json;
}

Result<int> run_try(const TryCommand& command) {
  BF_ASSIGN_OR_RETURN(const std::vector<Trial> trials, run_trials(command));
  if (command.json) {
    std::printf("%s\n", dump_json(to_json(command, trials), {.indent = 2}).c_str());
  } else {
    print(trials);
  }
  return kExitOk;
}

}  // namespace

void add_study_try(Command study, Action& action) {
  auto sub = study.add_subcommand("try", "Apply remedies one by one, and say how well they were predicted");
  auto command = std::make_shared<TryCommand>();
  sub.add_option("-o,--out", command->folder, "Folder for recordings and outputs of every run").show_default();
  sub.add_option("--remedy", command->flags,
                 "\"--flag value\" or NAME=VALUE instead of what the study advises; may be given several times")
      .takes_one_each_time();
  sub.add_option("--rounds", command->rounds, "Runs of each variant, in turns").in_range(1, 100).show_default();
  sub.add_option("--most", command->most, "Remedies that are tried, the first of the advice")
      .in_range(1, 20)
      .show_default();
  sub.add_option("--warmup", command->warmup, "Steps of each kind that are dropped at the beginning")
      .in_range(0, 1 << 30)
      .show_default();
  sub.add_option("--measure", command->measure, "Steps of each kind that are measured after them")
      .in_range(1, 1 << 30)
      .show_default();
  sub.add_flag("--json", command->json, "JSON on stdout");
  sub.add_option("command", command->words, "After --: any subcommand with its options").takes(1, -1);
  sub.footer(
      "Gates: more than 30 % faster in every round, no more memory, the same output, and the same in each round.\n"
      "Examples:\n"
      "  butterfly study try -- train --model tinytransformer-tiny --data synthetic:markov --steps 40 --fusion none\n"
      "  butterfly study try --remedy \"--threads 1\" --remedy \"--threads 2\" -- generate -m models/demo.gguf -p A -n "
      "200");
  run_later(
      sub, action, [command] { return run_try(*command); }, [command] { return missing_command(command->words); });
}

}  // namespace butterfly::app
