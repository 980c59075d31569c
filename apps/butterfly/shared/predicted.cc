#include "shared/predicted.h"

#include <cmath>
#include "butterfly/base/json.h"

namespace butterfly::app {

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

std::string why_not_predicted(const Deployment& deployment, const RunShape& run, const StolenTime& loading) {
  if (std::string why = deployment.unpredictable(run); !why.empty()) return why;
  const std::string disturbance = loading.sentence();
  if (disturbance.empty() || !deployment.forecast(run)) return {};
  return "not predicted: " + disturbance;
}

std::string compare(const Speeds& predicted, const Speeds& measured) {
  std::string text;
  const auto add = [&](const char* phase, double expected, double got) {
    if (!std::isfinite(expected) || expected <= 0) return;
    const auto error = prediction_error(expected, got);
    text += fmt::format("{}predicted {} {:.1f} tokens/s, {}", text.empty() ? "" : " | ", phase, expected,
                        error ? fmt::format("measured {:+.0f} %", 100 * *error) : "not measured");
  };
  add("prefill", predicted.prefill, measured.prefill);
  add("decode", predicted.decode, measured.decode);
  if (const auto error = prediction_error(predicted.run_s, measured.run_s)) {
    text += fmt::format(" | simulated {:.2f} s, measured {:+.0f} %", predicted.run_s, 100 * *error);
  }
  return text;
}

nlohmann::ordered_json to_json(const Speeds& predicted, const Speeds& measured) {
  nlohmann::ordered_json j;
  const auto add = [&](const std::string& phase, double expected, double got) {
    const auto error = prediction_error(expected, got);
    if (!error) return;
    j[phase + "_tokens_per_s"] = expected;
    j[phase + "_error"] = *error;
  };
  add("prefill", predicted.prefill, measured.prefill);
  add("decode", predicted.decode, measured.decode);
  if (const auto error = prediction_error(predicted.run_s, measured.run_s)) {
    j["simulated_s"] = predicted.run_s;
    j["simulated_error"] = *error;
  }
  return j;
}

}  // namespace butterfly::app
