#include "shared/predicted.h"

#include <algorithm>
#include <cmath>
#include "butterfly/base/json.h"

namespace butterfly::app {
namespace {

constexpr const char* kSimulated = "simulated";

}  // namespace

std::optional<Speeds> predicted_speeds(const Deployment& deployment, const RunShape& run) {
  const auto prediction = deployment.forecast(run);
  if (!prediction) return std::nullopt;
  Speeds speeds;
  // Prompts of several sequences overlap in ways that the closed formula does not follow.
  if (run.sequences == 1) speeds.prefill = run.prompt / prediction->plan.ttft_s;
  speeds.decode = run.sequences == 1 ? 1.0 / prediction->plan.token_s : prediction->plan.tokens_per_s;
  speeds.run_s = prediction->simulated_s;
  return speeds;
}

double shortage_of(const CpuShortage& shortage, const Deployment& deployment) {
  const std::vector<NodeReport> nodes = deployment.nodes();
  const bool beside_us =
      std::ranges::any_of(nodes, [](const NodeReport& node) { return node.name.starts_with("127."); });
  return beside_us ? shortage.share_of_machine() : shortage.share();
}

Judged judge_time(const std::string& what, double predicted_s, double measured_s, double disturbed) {
  PredictionHistory history = PredictionHistory::open(what);
  const Interval interval = history.of_time(predicted_s, disturbed);
  history.add_time(predicted_s, measured_s, disturbed);
  return {.what = what, .predicted = predicted_s, .measured = measured_s, .interval = interval};
}

Judged judge_rate(const std::string& what, double predicted_per_s, double measured_per_s, double disturbed) {
  PredictionHistory history = PredictionHistory::open(what);
  const Interval interval = history.of_rate(predicted_per_s, disturbed);
  history.add_rate(predicted_per_s, measured_per_s, disturbed);
  return {.what = what, .predicted = predicted_per_s, .measured = measured_per_s, .interval = interval};
}

std::string remark(const Judged& judged) {
  if (judged.inconclusive()) return ", inconclusive: the machine was disturbed";
  return judged.within() ? "" : ", outside";
}

std::vector<Judged> judge(const Speeds& predicted, const Speeds& measured, double disturbed) {
  std::vector<Judged> all;
  const auto known = [](double a, double b) { return std::isfinite(a) && a > 0 && std::isfinite(b) && b > 0; };
  if (known(predicted.prefill, measured.prefill)) {
    all.push_back(judge_rate("prefill", predicted.prefill, measured.prefill, disturbed));
  }
  if (known(predicted.decode, measured.decode)) {
    all.push_back(judge_rate("decode", predicted.decode, measured.decode, disturbed));
  }
  if (known(predicted.run_s, measured.run_s)) {
    all.push_back(judge_time(kSimulated, predicted.run_s, measured.run_s, disturbed));
  }
  return all;
}

std::string describe(const std::vector<Judged>& judged) {
  std::string text;
  for (const Judged& one : judged) {
    text += text.empty() ? "" : " | ";
    const std::string error = fmt::format("measured {:+.0f} %", 100 * one.error());
    if (one.what == kSimulated) {
      text += fmt::format("simulated {:.2f} s ({:.2f} to {:.2f}), {}", one.predicted, one.interval.low,
                          one.interval.high, error);
    } else {
      text += fmt::format("predicted {} {:.1f} tokens/s ({:.1f} to {:.1f}), {}", one.what, one.predicted,
                          one.interval.low, one.interval.high, error);
    }
    text += remark(one);
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<Judged>& judged) {
  nlohmann::ordered_json j;
  for (const Judged& one : judged) {
    j[one.what + (one.what == kSimulated ? "_s" : "_tokens_per_s")] = one.predicted;
    j[one.what + "_error"] = one.error();
    j[one.what + "_interval"] = {one.interval.low, one.interval.high};
    j[one.what + "_within"] = one.within();
    j[one.what + "_inconclusive"] = one.inconclusive();
  }
  return j;
}

}  // namespace butterfly::app
