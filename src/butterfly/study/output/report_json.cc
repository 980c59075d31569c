#include "butterfly/study/output/report_json.h"

#include <algorithm>
#include <cmath>

#include "butterfly/base/json.h"

namespace butterfly::study {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinity.
Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

/// What is not known is null, not zero.
Json known_or_null(double value) {
  return value > 0.0 ? finite(value) : Json(nullptr);
}

Json summary_json(const Summary& summary) {
  return {{"count", summary.count},
          {"mean", finite(summary.mean)},
          {"median", finite(summary.median)},
          {"deviation", finite(summary.deviation)},
          {"min", finite(summary.least)},
          {"max", finite(summary.most)},
          {"ci95_low", summary.blocks > 1 ? finite(summary.low()) : Json(nullptr)},
          {"ci95_high", summary.blocks > 1 ? finite(summary.high()) : Json(nullptr)}};
}

Json by_cache(const std::array<double, kCacheLevels>& values) {
  Json json = Json::object();
  for (std::size_t level = 0; level < kCacheLevels; ++level) {
    json[fmt::format("L{}", level + 1)] = known_or_null(values[level]);
  }
  return json;
}

Json operator_json(const OperatorTime& one) {
  return {{"name", one.name},
          {"kind", one.kind},
          {"type", one.type},
          {"calls", one.calls},
          {"total_s", finite(one.total_s)},
          {"own_s", finite(one.own_s)},
          {"share", finite(one.share)},
          {"flops", finite(one.flops)},
          {"bytes_analytic", finite(one.bytes)},
          {"gflops_per_s", finite(one.gflops_per_s)},
          {"gb_per_s", finite(one.gb_per_s)},
          {"arithmetic_intensity", known_or_null(one.intensity)},
          {"share_of_roof", known_or_null(one.share_of_roof)},
          {"share_of_cache_roof", by_cache(one.share_of_cache_roof)},
          {"memory_bound", one.ridge > 0.0 && one.intensity > 0.0 ? Json(one.memory_bound) : Json(nullptr)}};
}

Json track_json(const TrackTime& track) {
  Json phases = Json::array();
  for (const PhaseTime& phase : track.phases) {
    phases.push_back({{"name", phase.name},
                      {"seconds", finite(phase.seconds)},
                      {"share", finite(phase.share)},
                      {"rest_s", finite(phase.rest_s)},
                      {"recording_s", finite(phase.recording_s)}});
  }
  return {{"name", track.name},
          {"process", track.process},
          {"scheduler", track.scheduler},
          {"steps", track.steps},
          {"step_s", summary_json(track.step_s)},
          {"wall_s", finite(track.wall_s)},
          {"busy_s", finite(track.busy_s)},
          {"communication_exposed_s", finite(track.communication_s)},
          {"communication_hidden_s", finite(track.hidden_s)},
          {"wait_s", finite(track.wait_s)},
          {"idle_s", finite(track.idle_s)},
          {"flops", finite(track.flops)},
          {"phases", std::move(phases)}};
}

Json efficiency_json(const Efficiency& found) {
  const bool bound_known = found.ridge > 0.0 && found.intensity > 0.0;
  return {{"type", found.type},
          {"flops_per_step", finite(found.flops_per_step)},
          {"recomputed_flops_per_step", finite(found.recomputed_per_step)},
          {"bytes_per_step_analytic", finite(found.bytes_per_step)},
          {"tokens_per_step", known_or_null(found.tokens_per_step)},
          {"parameters", known_or_null(found.parameters)},
          {"flops_per_parameter_token", known_or_null(found.flops_per_parameter_token)},
          {"flops_per_s", finite(found.flops_per_s)},
          {"peak_flops_per_s", known_or_null(found.peak_flops)},
          {"mfu", known_or_null(found.mfu)},
          {"mfu_band", found.peak_flops > 0.0 ? Json(mfu_band(found.mfu)) : Json(nullptr)},
          {"hfu", known_or_null(found.hfu)},
          {"arithmetic_intensity", known_or_null(found.intensity)},
          {"ridge", known_or_null(found.ridge)},
          {"gb_per_s", finite(found.gb_per_s)},
          {"peak_gb_per_s", known_or_null(found.peak_gb_per_s)},
          {"cache_gb_per_s", by_cache(found.cache_gb_per_s)},
          {"bandwidth_share", known_or_null(found.bandwidth_share)},
          {"memory_bound", bound_known ? Json(found.memory_bound) : Json(nullptr)}};
}

Json links_json(const WorkloadStudy& work) {
  Json links = Json::array();
  for (const LinkUse& link : work.links) {
    links.push_back({{"process", link.process},
                     {"name", link.name},
                     {"messages", link.messages},
                     {"seconds", finite(link.seconds)},
                     {"wait_s", finite(link.wait_s)},
                     {"estimated_s", known_or_null(link.estimate_s)},
                     {"bytes", finite(link.bytes)},
                     {"algorithm_gb_per_s", finite(link.gb_per_s)},
                     {"bus_gb_per_s", known_or_null(link.bus_gb_per_s)}});
  }
  return links;
}

Json wire_json(const WorkloadStudy& work) {
  Json wire = Json::array();
  for (const WireUse& use : work.wire) {
    wire.push_back({{"process", use.process},
                    {"sent_bytes_per_step", finite(use.sent_per_step)},
                    {"received_bytes_per_step", finite(use.received_per_step)},
                    {"messages_sent_per_step", finite(use.messages_per_step)},
                    {"saved_bytes_per_step", finite(use.saved_per_step)}});
  }
  return wire;
}

template <typename List, typename Each>
Json list_json(const List& list, const Each& each) {
  Json result = Json::array();
  for (const auto& one : list) result.push_back(each(one));
  return result;
}

Json workload_json(const WorkloadStudy& work) {
  return {{"kind", to_string(work.kind)},
          {"selection", work.selection},
          {"step_s", summary_json(work.step_s)},
          {"tracks", list_json(work.tracks, track_json)},
          {"operators", list_json(work.operators, operator_json)},
          {"matmul_share", finite(work.matmul_share)},
          {"projections_per_layer", work.projections_per_layer},
          {"layers", list_json(work.layers,
                               [](const LayerTime& layer) {
                                 return Json{{"layer", layer.layer},
                                             {"track", layer.track},
                                             {"seconds_per_step", finite(layer.seconds_per_step)},
                                             {"share", finite(layer.share)},
                                             {"flops_per_step", finite(layer.flops_per_step)}};
                               })},
          {"efficiency", efficiency_json(work.efficiency)},
          {"launches",
           {{"per_step", finite(work.launches.per_step)},
            {"wakes_per_step", finite(work.launches.wakes_per_step)},
            {"seconds_per_step", work.launches.cost_known ? finite(work.launches.seconds_per_step) : Json(nullptr)},
            {"share", work.launches.cost_known ? finite(work.launches.share) : Json(nullptr)}}},
          {"allocations",
           {{"pool_per_step", finite(work.allocations.pool_per_step)},
            {"pool_misses_per_step", finite(work.allocations.pool_misses_per_step)},
            {"minor_faults_per_step", finite(work.allocations.faults_per_step)},
            {"system_s_per_step", finite(work.allocations.system_s_per_step)}}},
          {"links", links_json(work)},
          {"links_estimated_with", work.estimate_basis.empty() ? Json(nullptr) : Json(work.estimate_basis)},
          {"wire", wire_json(work)},
          {"on_the_way_share", finite(work.on_the_way_share)},
          {"waits", list_json(work.waits,
                              [](const WaitFor& wait) {
                                return Json{{"waiter", wait.waiter},
                                            {"other", wait.other},
                                            {"seconds", finite(wait.seconds)},
                                            {"share", finite(wait.share)}};
                              })},
          {"load_balance_factor", known_or_null(work.load_balance_factor)},
          {"straggler", work.straggler.empty() ? Json(nullptr) : Json(work.straggler)}};
}

Json memory_json(const MemoryUse& use) {
  Json timeline = Json::array();
  for (const MemoryPoint& point : use.timeline) {
    double held = 0.0;
    for (const double bytes : point.held) held += bytes;
    timeline.push_back({finite(point.at_s), finite(point.resident), finite(held)});
  }
  Json owners = Json::object();
  for (const auto& [owner, bytes] : use.held) owners[owner] = finite(bytes);
  return {{"process", use.process},
          {"peak_resident_bytes", finite(use.peak)},
          {"held_at_peak_bytes", std::move(owners)},
          {"files_bytes", finite(use.files)},
          {"other_bytes", finite(use.other)},
          {"heap_bytes", finite(use.heap)},
          {"heap_free_share", finite(use.heap_free_share)},
          {"growth_bytes", finite(use.growth)},
          {"growth_bytes_per_s", finite(use.growth_per_s)},
          {"growth_straightness", finite(use.growth_fit)},
          {"timeline_s_resident_held", std::move(timeline)}};
}

Json process_json(const ProcessUse& use) {
  return {{"name", use.name},
          {"host", use.host},
          {"seconds", finite(use.seconds)},
          {"cpus_used", finite(use.cpus_used)},
          {"threads", known_or_null(use.threads)},
          {"cpus", known_or_null(use.cpus)},
          {"usable_cpus", known_or_null(use.usable_cpus)},
          {"run_queue_share", finite(use.run_queue_share)},
          {"recording_share", finite(use.recording_share)},
          {"clock_error_us", finite(use.clock_error_us)},
          {"spans", use.spans},
          {"spans_lost", use.lost}};
}

Json cause_json(const Cause& cause) {
  return {{"id", cause.id},
          {"heading", to_string(cause.heading)},
          {"workload", cause.workload},
          {"what", cause.what},
          {"remedy", cause.remedy},
          {"effort", to_string(cause.effort)},
          {"priority", to_string(cause.priority)},
          {"gain", finite(cause.gain)},
          {"speedup", finite(cause.speedup)},
          {"speedup_low", finite(cause.speedup_low)},
          {"speedup_high", finite(cause.speedup_high)}};
}

Json advice_json(const Advice& advice) {
  return {{"uncertainty", finite(advice.uncertainty)},
          {"inconclusive", advice.inconclusive},
          {"causes", list_json(advice.causes, cause_json)},
          {"headings", list_json(advice.headings, [](const HeadingVerdict& one) {
             return Json{{"heading", to_string(one.heading)}, {"verdict", one.verdict}};
           })}};
}

const WorkloadStudy& longest(const Study& study) {
  return *std::ranges::max_element(study.workloads, {},
                                   [](const WorkloadStudy& work) { return work.tracks[work.lead].wall_s; });
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + "\"";
}

}  // namespace

std::string report_json(const Study& study, const Advice& advice) {
  Json facts = Json::object();
  for (const auto& [name, value] : study.facts) facts[name] = value;
  const Quality& quality = study.quality;
  const Json json{
      {"format", "butterfly-study"},
      {"version", 1},
      {"command", study.command},
      {"repeats", study.repeats},
      {"wall_s", finite(study.wall_s)},
      {"facts", std::move(facts)},
      {"quality",
       {{"trust", to_string(quality.trust)},
        {"stolen_share", finite(quality.stolen_share)},
        {"foreign_cpus", finite(quality.foreign_cpus)},
        {"run_queue_share", finite(quality.run_queue_share)},
        {"slowdown", finite(quality.slowdown)},
        {"reasons", quality.reasons}}},
      {"advice", advice_json(advice)},
      {"workloads", list_json(study.workloads, workload_json)},
      {"memory", list_json(study.memory, memory_json)},
      {"processes", list_json(study.processes, process_json)},
      {"beside_steps",
       list_json(study.beside,
                 [](const OtherTime& one) {
                   return Json{{"process", one.process}, {"name", one.name}, {"seconds", finite(one.seconds)}};
                 })},
      {"notes", study.notes}};
  return dump_json(json, {.indent = 1}) + "\n";
}

std::string flops_profile_json(const Study& study) {
  const WorkloadStudy& work = longest(study);
  const Efficiency& found = work.efficiency;
  const auto fact = [&study](const char* name) {
    const auto at = study.facts.find(name);
    return at == study.facts.end() ? 0.0 : std::atof(at->second.c_str());
  };
  // A sample is a sequence of training; of inference, a token.
  const double sequences = work.kind == WorkKind::kTrain && fact("train.seq") > 0.0
                               ? found.tokens_per_step / fact("train.seq")
                               : found.tokens_per_step;
  Json by_operation = Json::object();
  for (const OperatorTime& one : work.operators) {
    if (one.flops > 0.0) by_operation[one.name + (one.type.empty() ? "" : " " + one.type)] = finite(one.flops);
  }
  const Json json{
      {"steps", to_string(work.kind)},
      {"convention", "a multiplication and an addition are two FLOPs; what was computed again counts in HFU alone"},
      {"efficiency_metrics",
       {{"mfu_percent", known_or_null(100 * found.mfu)},
        {"hfu_percent", known_or_null(100 * found.hfu)},
        {"mfu_band", found.peak_flops > 0.0 ? Json(mfu_band(found.mfu)) : Json(nullptr)},
        {"device_peak_flops", known_or_null(found.peak_flops)}}},
      {"performance_metrics",
       {{"flops_per_sec", finite(found.flops_per_s)},
        {"throughput_samples_per_sec", work.step_s.mean > 0.0 ? finite(sequences / work.step_s.mean) : Json(nullptr)},
        {"step_time_sec", finite(work.step_s.mean)}}},
      {"flops_analysis",
       {{"flops_per_step", finite(found.flops_per_step)},
        {"flops_per_parameter",
         found.parameters > 0.0 ? finite(found.flops_per_step / found.parameters) : Json(nullptr)},
        {"flops_per_parameter_and_token", known_or_null(found.flops_per_parameter_token)},
        {"model_parameters", known_or_null(found.parameters)},
        {"by_operation", std::move(by_operation)}}}};
  return dump_json(json, {.indent = 2}) + "\n";
}

std::string computational_intensity_json(const Study& study) {
  const WorkloadStudy& work = longest(study);
  const Efficiency& found = work.efficiency;
  const bool bound_known = found.ridge > 0.0 && found.intensity > 0.0;
  const Json json{{"arithmetic_intensity_flops_per_byte", known_or_null(found.intensity)},
                  {"memory_bandwidth_used_gb_per_sec", finite(found.gb_per_s)},
                  {"memory_bandwidth_utilization_percent", known_or_null(100 * found.bandwidth_share)},
                  {"memory_bound_vs_compute_bound",
                   bound_known ? Json(found.memory_bound ? "memory_bound" : "compute_bound") : Json(nullptr)},
                  {"ridge_flops_per_byte", known_or_null(found.ridge)},
                  {"steps", to_string(work.kind)},
                  {"traffic", "analytic: counted from shapes"}};
  return dump_json(json, {.indent = 2}) + "\n";
}

std::string operators_csv(const Study& study) {
  std::string text =
      "steps,operation,kind,type,calls,total_s,own_s,share,flops,bytes_analytic,gflops_per_s,gb_per_s,"
      "flops_per_byte,share_of_roof,share_of_l1_roof,share_of_l2_roof,share_of_l3_roof,bound_by\n";
  for (const WorkloadStudy& work : study.workloads) {
    for (const OperatorTime& one : work.operators) {
      const bool bound_known = one.ridge > 0.0 && one.intensity > 0.0;
      text += fmt::format(
          "{},{},{},{},{},{:.9g},{:.9g},{:.6g},{:.0f},{:.0f},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{}\n",
          to_string(work.kind), csv_cell(one.name), one.kind, one.type, one.calls, one.total_s, one.own_s, one.share,
          one.flops, one.bytes, one.gflops_per_s, one.gb_per_s, one.intensity, one.share_of_roof,
          one.share_of_cache_roof[0], one.share_of_cache_roof[1], one.share_of_cache_roof[2],
          bound_known ? one.memory_bound ? "memory" : "compute" : "");
    }
  }
  return text;
}

}  // namespace butterfly::study
