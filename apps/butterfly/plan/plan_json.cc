// butterfly plan --json: everything that the tables show, and more, with units in the names. What is unknown is null.
#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/machine/prediction_history.h"
#include "butterfly/model/core/shard.h"
#include "plan/plan.h"
#include "plan/plan_training.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

/// In which nine of ten runs are on machines that do nothing else, by earlier runs of this one.
Json interval_json(const char* what, double seconds) {
  const Interval times = PredictionHistory::open(what).of_time(seconds, 0.0);
  return Json::array({number(times.low), number(times.high)});
}

Json prediction_json(const PlanPrediction& p) {
  return {{"first_token_s", number(p.ttft_s)},
          {"first_token_interval_s", interval_json("prefill", p.ttft_s)},
          {"token_s", number(p.token_s)},
          {"token_interval_s", interval_json("decode", p.token_s)},
          {"tokens_per_s", number(p.tokens_per_s)},
          {"slowest_s", number(p.slowest_s)},
          {"load_balance_factor", number(p.load_balance_factor)},
          {"stages", p.groups},
          {"hops", p.hops},
          {"hop_s", number(p.hop_s)},
          {"exchange_s", number(p.exchange_s)},
          {"memory_use", number(p.memory_use)},
          {"memory_bytes_max", p.memory_bytes_max}};
}

Json shares_json(const Planned& planned) {
  const Plan& plan = planned.plan;
  Json shares = Json::array();
  const std::vector<GroupRange> groups = groups_of(plan.stages());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = groups[group].begin; i < groups[group].end; ++i) {
      const StageAssignment& work = plan.shares[i].work;
      const StagePrediction& share = plan.shares[i].prediction;
      const int node = plan.shares[i].node;
      const IndexRange experts = shard_of(planned.config, work.slices).experts;
      shares.push_back({{"stage", group},
                        {"node", planned.cluster.name_of(node)},
                        {"first_layer", work.first_layer},
                        {"last_layer", work.last_layer - 1},
                        {"first_slice", work.slices.first},
                        {"last_slice", work.slices.last - 1},
                        {"embedding", work.embedding},
                        {"head", work.head},
                        {"decode_s", number(share.decode_s)},
                        {"exchange_s", number(share.exchange_s)},
                        {"prefill_s", number(share.prefill_s)},
                        {"weight_bytes", share.weight_bytes},
                        {"kv_bytes", share.kv_bytes},
                        {"activation_bytes", share.activation_bytes},
                        {"memory_bytes", share.memory_bytes()},
                        {"memory_bytes_of", planned.cluster.nodes[static_cast<std::size_t>(node)].memory_bytes}});
      if (planned.config.moe.experts > 0) {
        shares.back()["first_expert"] = experts.begin;
        shares.back()["last_expert"] = experts.end - 1;
      }
    }
  }
  return shares;
}

Json plan_json(const Planned& planned) {
  Json j = prediction_json(planned.plan.prediction);
  j["strategy"] = planned.plan.strategy;
  j["note"] = planned.plan.note;
  j["slowest_bound_s"] = number(planned.plan.slowest_bound_s);
  if (planned.plan.division_bound_s > 0) {
    j["division_bound_s"] = number(planned.plan.division_bound_s);
    j["any_size_bound_s"] = number(planned.plan.any_size_bound_s);
  }
  j["shares"] = shares_json(planned);
  j["standby"] = Json::array();
  for (int node : planned.plan.standby_nodes) j["standby"].push_back(planned.cluster.name_of(node));
  j["links"] = Json::array();
  for (const LinkUse& link : planned.plan.prediction.links) {
    j["links"].push_back({{"from", planned.cluster.name_of(link.from)},
                          {"to", planned.cluster.name_of(link.to)},
                          {"bytes_per_token", link.decode_bytes},
                          {"bytes_per_prompt", link.prefill_bytes}});
  }
  return j;
}

Json comparison_json(const Planned& planned) {
  Json rows = Json::array();
  for (const ComparedPlan& one : planned.all) {
    Json row{{"strategy", one.strategy}, {"feasible", one.plan.has_value()}};
    if (one.plan) {
      row.update(prediction_json(one.plan->prediction));
    } else {
      row["reason"] = one.plan.error().message;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json percentiles_json(const Percentiles& p) {
  return {{"p50", p.p50}, {"p95", p.p95}, {"p99", p.p99}};
}

Json simulation_json(const Planned& planned) {
  const SimulationReport& r = *planned.simulation;
  const SimulationOptions& o = planned.simulation_options;
  Json utilisation = Json::object();
  for (std::size_t node = 0; node < r.utilisation.size(); ++node) {
    utilisation[planned.cluster.name_of(static_cast<int>(node))] = r.utilisation[node];
  }
  return {{"requests", o.requests},
          {"rate_per_s", o.rate_per_s},
          {"prompt", o.prompt},
          {"generated", o.generated},
          {"seed", o.seed},
          {"seconds", r.seconds},
          {"first_token_s", percentiles_json(r.first_token_s)},
          {"request_s", percentiles_json(r.request_s)},
          {"tokens_per_s", r.tokens_per_s},
          {"failures", r.failures},
          {"replayed_rows", r.replayed_rows},
          {"events", r.events},
          {"utilisation", std::move(utilisation)}};
}

}  // namespace

std::string Planned::json() const {
  Json j{{"model", config.name},
         {"layers", config.layers},
         {"weight_type", std::string(to_string(config.weight_type))},
         {"nodes", cluster.size()}};
  if (!training.empty()) {
    j["batch"] = train_options.batch;
    j["seq"] = train_options.seq > 0 ? train_options.seq : config.context;
    add_training_json(*this, j);
  } else {
    j["sequences"] = options.sequences;
    j["context"] = options.context;
    j["goal"] = std::string(to_string(options.goal));
    j["plan"] = plan_json(*this);
    if (!all.empty()) j["strategies"] = comparison_json(*this);
  }
  if (simulation) j["simulation"] = simulation_json(*this);
  // Names may come from files in any encoding.
  return dump_json(j, {.indent = 2, .ascii = true}) + "\n";
}

}  // namespace butterfly::app
