#include "study/scale_verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"

namespace butterfly::app {
namespace {

constexpr double kBytesOfFloat = 4.0;

double number_of(const study::Study& found, const char* fact) {
  const auto at = found.facts.find(fact);
  return at == found.facts.end() ? 0.0 : std::max(0.0, std::atof(at->second.c_str()));
}

double phase_seconds(const study::TrackTime& track, const char* name) {
  double seconds = 0.0;
  for (const study::PhaseTime& phase : track.phases) {
    if (phase.name == name) seconds += phase.seconds;
  }
  return track.steps > 0 ? seconds / track.steps : 0.0;
}

/// At their own peak: the process's can be before the first step, where this machine is measured.
double held_activations(const study::Study& found) {
  double bytes = 0.0;
  for (const study::MemoryUse& use : found.memory) {
    double most = 0.0;
    for (const study::MemoryPoint& point : use.timeline) {
      most = std::max(most, point.held[static_cast<std::size_t>(trace::Owner::kActivations)] +
                                point.held[static_cast<std::size_t>(trace::Owner::kBuffers)]);
    }
    bytes += most;
  }
  return bytes;
}

/// Of the blocks, which are taken to be alike, and the embedding.
double largest_part_bytes(const study::Study& found) {
  const double table = number_of(found, "model.vocab") * number_of(found, "model.model_dim");
  const double blocks = std::max(0.0, number_of(found, "model.parameters") - table);
  const double layers = std::max(1.0, number_of(found, "model.layers"));
  return kBytesOfFloat * std::max(table, blocks / layers);
}

const study::WorkloadStudy* training_of(const study::Study& found) {
  const auto at = std::ranges::find(found.workloads, study::WorkKind::kTrain, &study::WorkloadStudy::kind);
  return at == found.workloads.end() ? nullptr : &*at;
}

std::uint64_t memory_by_cpu() {
  const auto topology = detect_topology();
  return topology ? topology->memory_bytes / static_cast<std::uint64_t>(std::max(1, usable_threads())) : 0;
}

/// The measured rank's share of the work on each of `ranks`.
RankWork work_of_each(const study::Study& found, const study::WorkloadStudy& work, const ScaleQuestion& asked) {
  const study::TrackTime& lead = work.tracks[work.lead];
  const double all = std::max(1.0, number_of(found, "train.global_batch"));
  const double each = asked.weak ? all : std::ceil(all / asked.ranks);  // sequences of the rank that has most
  const double part = each / all;
  const double micro = std::max(1.0, number_of(found, "train.micro_batch"));
  // The spread of the measured steps, and what formulas leave out.
  const double spread = work.step_s.mean > 0.0 ? work.step_s.half_width / work.step_s.mean : 0.0;
  return {.forward_s = part * phase_seconds(lead, "forward"),
          .backward_s = part * phase_seconds(lead, "backward"),
          .optimizer_s = phase_seconds(lead, "optimizer"),
          .parameters = static_cast<std::uint64_t>(number_of(found, "model.parameters")),
          .largest_part_bytes = static_cast<std::uint64_t>(largest_part_bytes(found)),
          .activation_bytes = static_cast<std::uint64_t>(std::min(1.0, each / micro) * held_activations(found)),
          .memory_bytes = asked.memory_bytes,
          .micro_batches = static_cast<int>(std::ceil(each / std::min(each, micro))),
          .uncertainty = std::min(0.9, std::hypot(kMeasuredUncertainty, spread))};
}

const char* scheme_of(TrainStrategy strategy) {
  return strategy == TrainStrategy::kDdp ? "DDP" : "FSDP";
}

}  // namespace

Result<ScaleVerdict> scale_verdict(const study::Study& one_rank, const ScaleQuestion& question) {
  const study::WorkloadStudy* work = training_of(one_rank);
  if (work == nullptr || number_of(one_rank, "model.parameters") <= 0.0) {
    return make_error(ErrorCode::kNotFound, "the recording has no steps of training with a known model");
  }
  ScaleVerdict verdict{.asked = question, .ranks_asked = question.ranks};
  const int sequences = static_cast<int>(std::clamp(number_of(one_rank, "train.global_batch"), 1.0, 1e9));
  if (!question.weak) verdict.asked.ranks = std::min(question.ranks, sequences);
  if (question.memory_bytes == 0) verdict.asked.memory_bytes = memory_by_cpu();
  const RankWork each = work_of_each(one_rank, *work, verdict.asked);
  std::vector<TrainCandidate> candidates;
  for (const TrainStrategy strategy : kTrainStrategies) {
    if (strategy == TrainStrategy::kPipeline) continue;  // neither DDP nor FSDP
    BF_ASSIGN_OR_RETURN(const TrainNodePrediction step,
                        predict_rank(strategy, verdict.asked.ranks, verdict.asked.link, each));
    candidates.push_back({.strategy = strategy,
                          .step_s = step.step_s(),
                          .memory_bytes = step.memory_bytes(),
                          .available_bytes = verdict.asked.memory_bytes,
                          .missing_bytes = step.missing_bytes});
    verdict.steps.emplace_back(strategy, step);
  }
  verdict.choice = choose_training(candidates);
  return verdict;
}

std::string verdict_text(const ScaleVerdict& verdict) {
  const ScaleQuestion& asked = verdict.asked;
  std::string text = fmt::format(
      "\nDDP or FSDP, estimated: {} ranks that compute as the measured one, links of {} us and {:g} "
      "GB/s{}, {} of memory each\n",
      asked.ranks, asked.link.latency_us, asked.link.gb_per_s,
      asked.link_assumed ? " (assumed: --latency-us, --gbit-per-s)" : "", format_bytes(asked.memory_bytes));
  if (asked.ranks < verdict.ranks_asked) {
    text += fmt::format("a step has {} sequences: no work for more ranks than that, --extrapolate was {}\n",
                        asked.ranks, verdict.ranks_asked);
  }
  text += fmt::format("{:<13}  {:>9}  {:>22}  {:>13}  {:>10}  {:>10}  {}\n", "", "step", "interval", "communication",
                      "sent", "memory", "weights, gradients, moments, activations and buffers");
  for (const auto& [strategy, step] : verdict.steps) {
    text += fmt::format("{:<13}  {:>9}  {:>22}  {:>13}  {:>10}  {:>10}  {}, {}, {}, {}{}\n", to_string(strategy),
                        format_seconds(step.step_s()),
                        fmt::format("{} to {}", format_seconds(step.step_low_s), format_seconds(step.step_high_s)),
                        format_seconds(step.communication_s), format_bytes(static_cast<std::uint64_t>(step.bytes_sent)),
                        format_bytes(step.memory_bytes()), format_bytes(step.weight_bytes),
                        format_bytes(step.gradient_bytes), format_bytes(step.optimizer_bytes),
                        format_bytes(step.activation_bytes),
                        step.missing_bytes > 0 ? fmt::format("; lacks {}", format_bytes(step.missing_bytes)) : "");
  }
  const TrainChoice& choice = verdict.choice;
  if (!choice.fits) return text + fmt::format("verdict: neither: {}\n", choice.reason);
  text += fmt::format("verdict: {} ({}): {}\n", scheme_of(choice.strategy), to_string(choice.strategy), choice.reason);
  return text;
}

nlohmann::ordered_json verdict_json(const ScaleVerdict& verdict) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::object();
  for (const auto& [strategy, step] : verdict.steps) {
    steps[std::string(to_string(strategy))] = {{"step_s", step.step_s()},
                                               {"step_low_s", step.step_low_s},
                                               {"step_high_s", step.step_high_s},
                                               {"communication_s", step.communication_s},
                                               {"bytes_sent", step.bytes_sent},
                                               {"weight_bytes", step.weight_bytes},
                                               {"gradient_bytes", step.gradient_bytes},
                                               {"optimizer_bytes", step.optimizer_bytes},
                                               {"activation_bytes", step.activation_bytes},
                                               {"gathered_bytes", step.gathered_bytes},
                                               {"memory_bytes", step.memory_bytes()},
                                               {"missing_bytes", step.missing_bytes}};
  }
  const TrainChoice& choice = verdict.choice;
  const auto of = [&choice](const std::string& name) {
    return choice.fits ? nlohmann::ordered_json(name) : nlohmann::ordered_json(nullptr);
  };
  return {{"ranks", verdict.asked.ranks},
          {"link",
           {{"latency_us", verdict.asked.link.latency_us},
            {"gb_per_s", verdict.asked.link.gb_per_s},
            {"assumed", verdict.asked.link_assumed}}},
          {"memory_bytes_of_each", verdict.asked.memory_bytes},
          {"strategies", std::move(steps)},
          {"verdict", of(scheme_of(choice.strategy))},
          {"strategy", of(std::string(to_string(choice.strategy)))},
          {"reason", choice.reason}};
}

}  // namespace butterfly::app
