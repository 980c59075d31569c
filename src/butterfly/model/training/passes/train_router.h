// Which experts each row goes through, with which weights, and what the weights' gradients are to the router's logits.
// The load-balance loss is that of https://arxiv.org/abs/2101.03961, as transformers has it for Mixtral and Qwen-MoE:
// experts * sum over them of f * P, f the share of rows that an expert has (they add up to experts_used) and P the mean
// of the softmax of its logits, both over all rows of a micro-batch and all layers with experts, or of each layer.
#pragma once

#include <cstdint>
#include <vector>

#include "butterfly/model/training/passes/train_context.h"

namespace butterfly {

/// What one forward pass adds up for the load-balance loss; by layer, then by expert. Layers without experts have
/// zeros.
struct RouterTally {
  std::vector<std::int64_t> tokens;   // rows that an expert has
  std::vector<double> probabilities;  // sums over rows

  explicit RouterTally(const ModelConfig& config);
  void clear();
};

/// Of a micro-batch of `rows` rows; 0 where there are no experts.
double balance_loss(const ModelConfig& config, const RouterTally& tally, std::int64_t rows, BalanceScope scope);

/// slopes[layers, experts]: the gradient of rows * factor * balance_loss with respect to every probability of each
/// expert.
struct BalanceSlopes {
  std::int64_t rows = 0;
  BalanceScope scope = BalanceScope::kModel;
  double factor = 0.0;
};
void balance_slopes(const ModelConfig& config, const RouterTally& tally, const BalanceSlopes& of, float* slopes);

/// 1 / (1 + exp(-x)) with the same bits on every CPU.
float exact_sigmoid(float x);

struct RouterArgs {
  const float* logits = nullptr;       // [rows, experts]
  const float* choice_bias = nullptr;  // [experts] or null
  int* experts = nullptr;              // [rows, used], ascending in each row
  float* weights = nullptr;            // [rows, used]
};
/// Writes experts and weights: scores by config.moe.scores, chosen by choose_highest() of them, with the bias where
/// there is one; weight = score; where renormalised / (sum of the chosen ones + epsilon); * scale.
void route(const TrainContext& context, const RouterArgs& args);

/// Adds the rows' probabilities to `sums` [experts].
void add_probabilities(const TrainContext& context, const float* logits, double* sums);

struct RouterBackwardArgs {
  RouterArgs forward{};
  const float* dweights = nullptr;  // [rows, used]
  const float* balance = nullptr;   // [experts]: balance_slopes(); null: none
  float* dlogits = nullptr;         // [rows, experts], written
  void* dlogits_operand = nullptr;  // the same as matmuls take it; may be dlogits
};
void route_backward(const TrainContext& context, const RouterBackwardArgs& args);

}  // namespace butterfly
