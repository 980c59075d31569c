// What the plan predicted, beside what a run measured.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/machine/prediction_history.h"
#include "butterfly/machine/usage/cpu_shortage.h"

namespace butterfly::app {

/// Both in tokens per second, all sequences together; 0: unknown.
struct Speeds {
  double prefill = 0;
  double decode = 0;
  double run_s = 0;  // the whole run
};

/// What the deployment's plan predicts for such a run; nothing where it cannot.
std::optional<Speeds> predicted_speeds(const Deployment& deployment, const RunShape& run);

/// One predicted number beside what was measured.
struct Judged {
  std::string what;  // "prefill"
  double predicted = 0, measured = 0;
  Interval
      interval{};  // in which nine of ten measured ones lie, by earlier runs here and by how far this one was disturbed

  double error() const { return measured / predicted - 1; }
  bool inconclusive() const { return half_width(interval, predicted) > kWidestInterval; }
  bool within() const { return interval.holds(measured); }
};

/// Of the nodes that are on this machine.
double shortage_of(const CpuShortage& shortage, const Deployment& deployment);

/// A time or a rate; adds it to what this machine knows of predictions of `what`. `disturbed` is the share of the CPU
/// time that was wanted meanwhile and not got.
Judged judge_time(const std::string& what, double predicted_s, double measured_s, double disturbed);
Judged judge_rate(const std::string& what, double predicted_per_s, double measured_per_s, double disturbed);

/// ", outside", ", inconclusive: the machine was disturbed", or nothing.
std::string remark(const Judged& judged);

/// What is known of both, as above.
std::vector<Judged> judge(const Speeds& predicted, const Speeds& measured, double disturbed);

/// "predicted prefill 93.1 tokens/s (79 to 114), measured +4 % | predicted decode 20.3 tokens/s (17 to 25), measured -2
/// % | simulated 3.4 s (2.8 to 4.0), measured +5 %"; an interval that is too wide is called inconclusive.
std::string describe(const std::vector<Judged>& judged);

/// {"prefill_tokens_per_s": ..., "prefill_error": ..., "prefill_interval": [low, high], "prefill_within": true,
/// "prefill_inconclusive": false, ... "simulated_s": ...}, unknown ones left out; an error is measured / predicted - 1.
nlohmann::ordered_json to_json(const std::vector<Judged>& judged);

}  // namespace butterfly::app
