// Operations that could be one: what each takes now, and what it takes fused, from what other operations of the same
// steps reach of their roofs.
#include <algorithm>
#include <array>
#include <span>

#include "butterfly/study/advice/causes.h"

namespace butterfly::study {
namespace {

bool is_training(const WorkloadStudy& work) {
  return work.kind == WorkKind::kTrain;
}

/// "gate" for "gate weight_gradient".
std::string_view zone_name(const OperatorTime& operation) {
  return std::string_view(operation.name).substr(0, operation.name.find(' '));
}

bool is_one_of(const OperatorTime& operation, std::span<const std::string_view> zones) {
  return std::ranges::find(zones, zone_name(operation)) != zones.end();
}

const OperatorTime* operation_of(const WorkloadStudy& work, std::string_view name) {
  const auto found = std::ranges::find(work.operators, name, &OperatorTime::name);
  return found == work.operators.end() ? nullptr : &*found;
}

/// What the matmul outside of `zones` with most FLOPs a call reaches of its roof; 0: there is none.
double reached_by_others(const WorkloadStudy& work, std::string_view type, std::span<const std::string_view> zones) {
  const OperatorTime* largest = nullptr;
  const auto size = [](const OperatorTime& one) {
    return one.flops / static_cast<double>(std::max<std::uint64_t>(one.calls, 1));
  };
  for (const OperatorTime& one : work.operators) {
    if (one.kind != "matmul" || one.type != type || one.share_of_roof <= 0.0 || is_one_of(one, zones)) continue;
    if (largest == nullptr || size(one) > size(*largest)) largest = &one;
  }
  return largest == nullptr ? 0.0 : largest->share_of_roof;
}

/// As a share of all time; 0 where the operation is as near to its roof now.
double saved_at(const OperatorTime& operation, double least_part, double share_of_roof) {
  if (operation.share_of_roof <= 0.0 || share_of_roof <= 0.0) return 0.0;
  return operation.share * std::max(0.0, 1.0 - least_part * operation.share_of_roof / share_of_roof);
}

/// Matmuls of the same rows become one, that reaches what the largest other one does.
double saved_by_one_matmul(const WorkloadStudy& work, std::span<const std::string_view> zones) {
  double saved = 0.0;
  for (const OperatorTime& one : work.operators) {
    if (is_one_of(one, zones)) saved += saved_at(one, 1.0, reached_by_others(work, one.type, zones));
  }
  return saved;
}

std::string share_text(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

std::string two_shares(const WorkloadStudy& work, std::string_view first, std::string_view second) {
  return fmt::format("{} takes {} and {} takes {} of the time", first, share_text(share_of(work, first)), second,
                     share_text(share_of(work, second)));
}

std::string fusion_remedy(std::string_view name) {
  return fmt::format("--fusion all (or {} among its names)", name);
}

void add_qkv(const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr std::array<std::string_view, 3> kZones{"query", "key", "value"};
  if (work.projections_per_layer < 2 || operation_of(work, "query") == nullptr) return;
  // Fused, positions are rotated while the product is written.
  const double rotary = is_training(work) ? share_of(work, "rotary") : 0.0;
  causes.push_back({.id = "separate_qkv",
                    .heading = Heading::kSeparateQkv,
                    .workload = std::string(to_string(work.kind)),
                    .what = fmt::format("queries, keys and values are {} matmuls per layer: {}",
                                        work.projections_per_layer, two_shares(work, "query", "key")),
                    .remedy = is_training(work)
                                  ? fusion_remedy("qkv")
                                  : "convert the model: butterfly convert packs the three as one where their "
                                    "types agree",
                    .effort = is_training(work) ? Effort::kFlag : Effort::kSetup,
                    .gain = saved_by_one_matmul(work, kZones) + rotary});
}

void add_gate_up(const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr std::array<std::string_view, 2> kZones{"gate", "up"};
  constexpr double kActivation = 0.35;  // of its passes over memory, forward and backward
  if (operation_of(work, "gate") == nullptr || operation_of(work, "up") == nullptr) return;
  const double activation = is_training(work) ? kActivation * share_of(work, "activation") : 0.0;
  causes.push_back({.id = "separate_gate_up",
                    .heading = Heading::kSeparateGateUp,
                    .workload = std::string(to_string(work.kind)),
                    .what = fmt::format("gate and up are two matmuls per layer: {}", two_shares(work, "gate", "up")),
                    .remedy = is_training(work) ? fusion_remedy("swiglu")
                                                : "convert the model: butterfly convert gives both one type",
                    .effort = is_training(work) ? Effort::kFlag : Effort::kSetup,
                    .gain = saved_by_one_matmul(work, kZones) + activation});
}

/// Fused, scores stay in a cache, and those of later positions are not computed: its tiles leave out that part of them,
/// and reach half of what large matmuls do.
double saved_by_fused_attention(const WorkloadStudy& work) {
  constexpr double kComputed = 0.63, kOfMatmuls = 0.5;
  double saved = 0.0;
  const double matmuls = std::max(reached_by_others(work, "f32", {}), reached_by_others(work, "bf16", {}));
  for (const OperatorTime& one : work.operators) {
    if (zone_name(one) == "attention") saved += saved_at(one, kComputed, kOfMatmuls * matmuls);
  }
  return saved;
}

void add_attention(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kWorthSaying = 0.01, kMuch = 0.35;
  const double share = share_of(work, "attention");
  const OperatorTime* one = operation_of(work, "attention");
  if (one == nullptr) return;
  Cause cause{.id = "attention_memory",
              .heading = Heading::kAttentionMemory,
              .workload = std::string(to_string(work.kind)),
              .what = {},
              .remedy = {},
              .effort = Effort::kFlag,
              .gain = 0.0};
  if (!fuses(study, "attention")) {
    cause.what = fmt::format("attention writes its scores to memory and takes {} of the time", share_text(share));
    cause.remedy = fusion_remedy("attention");
    cause.gain = saved_by_fused_attention(work);
  } else if (!is_training(work) && share > kMuch && one->memory_bound) {
    constexpr double kHalfTheBytes = 0.45;
    cause.what = fmt::format("attention takes {} of the time and is bound by memory", share_text(share));
    cause.remedy = "--kv-type q8_0: keys and values in half the bytes";
    cause.gain = kHalfTheBytes * share;
  }
  if (cause.gain >= kWorthSaying) causes.push_back(std::move(cause));
}

void add_loss(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kWorthSaying = 0.002, kSaved = 0.5;  // two passes over the logits instead of four
  const double share = share_of(work, "softmax_loss");
  if (fuses(study, "cross_entropy") || kSaved * share < kWorthSaying) return;
  causes.push_back({.id = "softmax",
                    .heading = Heading::kSoftmax,
                    .workload = std::string(to_string(work.kind)),
                    .what = fmt::format("softmax and loss are separate and take {} of the time", share_text(share)),
                    .remedy = fusion_remedy("cross_entropy"),
                    .effort = Effort::kFlag,
                    .gain = kSaved * share});
}

void add_update(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  // Bytes by parameter: 28 in one pass (weight, gradient and two moments read, three of them written), 48 in several.
  constexpr double kBytes = 28.0 / 48.0, kWorthSaying = 0.002;
  const OperatorTime* update = operation_of(work, "update");
  if (fuses(study, "adamw") || update == nullptr) return;
  const double gain = saved_at(*update, kBytes, 1.0);
  if (gain < kWorthSaying) return;
  causes.push_back({.id = "separate_update",
                    .heading = Heading::kMemory,
                    .workload = std::string(to_string(work.kind)),
                    .what = fmt::format("the optimizer goes over its state several times and takes {} of the time",
                                        share_text(update->share)),
                    .remedy = fusion_remedy("adamw"),
                    .effort = Effort::kFlag,
                    .gain = gain});
}

}  // namespace

std::vector<Cause> fusion_causes(const Study& study, const WorkloadStudy& work) {
  std::vector<Cause> causes;
  add_qkv(work, causes);
  add_gate_up(work, causes);
  add_attention(study, work, causes);
  add_loss(study, work, causes);
  add_update(study, work, causes);
  return causes;
}

}  // namespace butterfly::study
