// What the plan predicted, beside what a run measured.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/machine/usage/stolen_time.h"

namespace butterfly::app {

/// Both in tokens per second, all sequences together; 0: unknown.
struct Speeds {
  double prefill = 0;
  double decode = 0;
  double run_s = 0;  // the whole run
};

/// What the deployment's plan predicts for such a run; nothing where it cannot.
std::optional<Speeds> predicted_speeds(const Deployment& deployment, const RunShape& run);

/// Why no prediction is made for such a run: the model of costs does not hold, or the machine was disturbed since
/// `loading` began. To be said before the run; empty where there is a prediction, or nothing to predict.
std::string why_not_predicted(const Deployment& deployment, const RunShape& run, const StolenTime& loading);

/// "predicted prefill 93.1 tokens/s, measured +4 % | predicted decode 20.3 tokens/s, measured -2 % | simulated 3.4 s,
/// measured +5 %".
std::string compare(const Speeds& predicted, const Speeds& measured);

/// {"prefill_tokens_per_s": ..., "prefill_error": ..., "decode_tokens_per_s": ..., "decode_error": ..., "simulated_s":
/// ..., "simulated_error": ...}, unknown ones left out; an error is measured / predicted - 1.
nlohmann::ordered_json to_json(const Speeds& predicted, const Speeds& measured);

}  // namespace butterfly::app
