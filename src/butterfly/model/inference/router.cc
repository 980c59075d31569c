#include "butterfly/model/inference/router.h"

#include <algorithm>

#include "butterfly/model/routing/expert_choice.h"

namespace butterfly {

void choose_experts(const Kernels& kernels, const MoeConfig& config, const float* choice_bias, std::span<float> scores,
                    std::span<float> choice, std::span<int> experts, std::span<float> weights) {
  const auto count = static_cast<long>(scores.size());
  if (config.scores == MoeConfig::Scores::kSoftmax) kernels.softmax(scores.data(), count, scores.data());
  if (config.scores == MoeConfig::Scores::kSigmoid) kernels.sigmoid(scores.data(), count, scores.data());
  std::ranges::copy(scores, choice.begin());
  if (choice_bias != nullptr) kernels.add(choice_bias, count, choice.data());
  choose_highest(config, choice, experts);
  for (std::size_t i = 0; i < experts.size(); ++i) weights[i] = scores[static_cast<std::size_t>(experts[i])];
  if (config.scores == MoeConfig::Scores::kSoftmaxOfChosen) {
    kernels.softmax(weights.data(), static_cast<long>(weights.size()), weights.data());
  }
  float divisor = 0.0f;
  for (const float weight : weights) divisor = divisor + weight;
  divisor = divisor + config.renormalise_epsilon;
  for (float& weight : weights) {
    if (config.renormalise) weight = weight / divisor;
    weight = weight * config.weight_scale;
  }
}

Result<Router> Router::load(const ModelConfig& config, const std::string& prefix, const WeightSource& source,
                            ThreadTeam& team) {
  Router router;
  router.config_ = config.moe;
  const std::int64_t experts = config.moe.experts;
  const LinearPart part{WeightPart::all(experts, config.model_dim), config.moe.router_bias};
  BF_ASSIGN_OR_RETURN(router.matrix_, load_linear(source, prefix + "ffn_gate_inp", part, team));
  if (config.moe.choice_bias) {
    BF_ASSIGN_OR_RETURN(router.choice_bias_, load_vector(source, prefix + "exp_probs_b.bias", experts, {0, experts}));
  }
  return router;
}

Result<ExpertChoice> Router::choose(const Compute& compute, const ActivationRows& x) const {
  const auto experts = static_cast<std::size_t>(config_.experts);
  const auto used = static_cast<std::size_t>(config_.experts_used);
  const auto rows = static_cast<std::size_t>(x.rows);
  ExpertChoice choice{.rows = x.rows, .used = config_.experts_used, .experts = {}, .weights = {}};
  BF_ASSIGN_OR_RETURN(const auto scores, compute.arena->allocate_array<float>(rows * experts));
  BF_ASSIGN_OR_RETURN(const auto compared, compute.arena->allocate_array<float>(rows * experts));
  BF_ASSIGN_OR_RETURN(choice.experts, compute.arena->allocate_array<int>(rows * used));
  BF_ASSIGN_OR_RETURN(choice.weights, compute.arena->allocate_array<float>(rows * used));
  const LinearJob job{.weights = &matrix_.matrix,
                      .x = &x,
                      .slices = SliceBorders::single(x.cols),
                      .bias = matrix_.bias_or_null(),
                      .y = scores.data()};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1), trace::Zone::kRouter);
  const auto width = static_cast<std::int64_t>(experts);
  const trace::Scope scope(trace::Zone::kActivation, work_on_rows(x.rows, width, 3 * width));
  const float* bias = choice_bias_.empty() ? nullptr : choice_bias_.data();
  const auto elements = static_cast<std::int64_t>(experts * (8 + used));
  for_each_row(compute, x.rows, elements, [&](std::int64_t row) {
    const auto at = static_cast<std::size_t>(row);
    choose_experts(*compute.kernels, config_, bias, scores.subspan(at * experts, experts),
                   compared.subspan(at * experts, experts), choice.experts.subspan(at * used, used),
                   choice.weights.subspan(at * used, used));
  });
  return choice;
}

std::uint64_t Router::packed_bytes() const {
  return matrix_.matrix.bytes() + (matrix_.bias.size() + choice_bias_.size()) * sizeof(float);
}

}  // namespace butterfly
