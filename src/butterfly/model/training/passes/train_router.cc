#include "butterfly/model/training/passes/train_router.h"

#include <limits>
#include <span>

#include "butterfly/model/core/rotary.h"
#include "butterfly/model/routing/expert_choice.h"
#include "butterfly/model/training/passes/train_pass.h"

namespace butterfly {
namespace {

using Scores = MoeConfig::Scores;

/// exp() with the same bits on every CPU; NaN stays.
double exp_of(double x) {
  constexpr double kLowest = -600.0, kHighest = 600.0;
  if (x < kLowest) return 0.0;
  if (x > kHighest) return std::numeric_limits<double>::infinity();
  return x == x ? exact::exp(x) : x;
}

void softmax(const float* logits, std::int64_t n, float* y) {
  float largest = logits[0];
  for (std::int64_t i = 1; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += exp_of(static_cast<double>(logits[i]) - static_cast<double>(largest));
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(exp_of(static_cast<double>(logits[i]) - static_cast<double>(largest)) / sum);
  }
}

/// What experts are compared by, of one row.
void scores_of(const MoeConfig& moe, const float* logits, float* scores) {
  if (moe.scores == Scores::kSoftmax) return softmax(logits, moe.experts, scores);
  for (int e = 0; e < moe.experts; ++e) {
    scores[e] = moe.scores == Scores::kSigmoid ? exact_sigmoid(logits[e]) : logits[e];
  }
}

/// The scores of the chosen experts of one row: `scores` are scores_of() and become scratch.
void scores_of_chosen(const MoeConfig& moe, const int* experts, float* scores, float* chosen) {
  for (int i = 0; i < moe.experts_used; ++i) chosen[i] = scores[experts[i]];
  if (moe.scores != Scores::kSoftmaxOfChosen) return;
  for (int i = 0; i < moe.experts_used; ++i) scores[i] = chosen[i];
  softmax(scores, moe.experts_used, chosen);
}

float divisor_of(const MoeConfig& moe, const float* chosen) {
  float sum = 0.0f;
  for (int i = 0; i < moe.experts_used; ++i) sum += chosen[i];
  return sum + moe.renormalise_epsilon;
}

/// Gradients of the weights become those of the chosen scores, in place.
void weights_backward(const MoeConfig& moe, const float* chosen, float* slopes) {
  const float divisor = moe.renormalise ? divisor_of(moe, chosen) : 1.0f;
  float mean = 0.0f;
  for (int i = 0; i < moe.experts_used; ++i) {
    slopes[i] *= moe.weight_scale;
    if (moe.renormalise) mean += slopes[i] * (chosen[i] / divisor);
  }
  for (int i = 0; i < moe.experts_used; ++i) slopes[i] = (slopes[i] - mean) / divisor;
}

/// One row; `scores` has experts floats, `chosen` and `slopes` experts_used each.
void route_row_backward(const MoeConfig& moe, const RouterBackwardArgs& args, std::int64_t row, float* scores,
                        float* chosen, float* slopes) {
  const std::int64_t first = row * moe.experts_used;
  const float* logits = args.forward.logits + row * moe.experts;
  const int* experts = args.forward.experts + first;
  float* dlogits = args.dlogits + row * moe.experts;
  scores_of(moe, logits, scores);
  scores_of_chosen(moe, experts, scores, chosen);
  for (int i = 0; i < moe.experts_used; ++i) slopes[i] = args.dweights[first + i];
  weights_backward(moe, chosen, slopes);
  std::fill_n(dlogits, moe.experts, 0.0f);
  float mean = 0.0f;
  for (int i = 0; i < moe.experts_used; ++i) mean += slopes[i] * chosen[i];
  if (moe.scores == Scores::kSoftmax) {
    for (int e = 0; e < moe.experts; ++e) dlogits[e] = -scores[e] * mean;
  }
  for (int i = 0; i < moe.experts_used; ++i) {
    const float s = chosen[i];
    const bool sigmoid = moe.scores == Scores::kSigmoid;
    const bool of_chosen = moe.scores == Scores::kSoftmaxOfChosen;
    dlogits[experts[i]] += s * (sigmoid ? slopes[i] * (1.0f - s) : of_chosen ? slopes[i] - mean : slopes[i]);
  }
  if (args.balance == nullptr) return;
  if (moe.scores != Scores::kSoftmax) softmax(logits, moe.experts, scores);
  float balance = 0.0f;
  for (int e = 0; e < moe.experts; ++e) balance += args.balance[e] * scores[e];
  for (int e = 0; e < moe.experts; ++e) dlogits[e] += scores[e] * (args.balance[e] - balance);
}

}  // namespace

RouterTally::RouterTally(const ModelConfig& config)
    : tokens(config.moe.experts > 0
                 ? static_cast<std::size_t>(config.layers) * static_cast<std::size_t>(config.moe.experts)
                 : 0),
      probabilities(tokens.size()) {}

void RouterTally::clear() {
  std::fill(tokens.begin(), tokens.end(), 0);
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
}

double balance_loss(const ModelConfig& config, const RouterTally& tally, std::int64_t rows, BalanceScope scope) {
  const auto experts = static_cast<std::size_t>(config.moe.experts);
  const double all_rows = static_cast<double>(config.expert_layers()) * static_cast<double>(rows);
  if (all_rows == 0) return 0.0;
  double loss = 0.0;
  for (std::size_t e = 0; e < experts; ++e) {
    double tokens = 0.0, probability = 0.0, by_layer = 0.0;
    for (std::size_t at = e; at < tally.tokens.size(); at += experts) {
      const auto of_layer = static_cast<double>(tally.tokens[at]);
      tokens += of_layer;
      probability += tally.probabilities[at];
      by_layer += of_layer / static_cast<double>(rows) * (tally.probabilities[at] / all_rows);
    }
    loss += scope == BalanceScope::kModel ? tokens / all_rows * (probability / all_rows) : by_layer;
  }
  return static_cast<double>(experts) * loss;
}

void balance_slopes(const ModelConfig& config, const RouterTally& tally, const BalanceSlopes& of, float* slopes) {
  const auto experts = static_cast<std::size_t>(config.moe.experts);
  const double layers = config.expert_layers();
  const double rows = static_cast<double>(of.rows);
  for (std::size_t e = 0; e < experts; ++e) {
    double tokens = 0.0;
    for (std::size_t at = e; at < tally.tokens.size(); at += experts) tokens += static_cast<double>(tally.tokens[at]);
    for (std::size_t at = e; at < tally.tokens.size(); at += experts) {
      const double share =
          of.scope == BalanceScope::kModel ? tokens / (layers * rows) : static_cast<double>(tally.tokens[at]) / rows;
      slopes[at] = static_cast<float>(of.factor * static_cast<double>(experts) * share / layers);
    }
  }
}

float exact_sigmoid(float x) {
  return static_cast<float>(1.0 / (1.0 + exp_of(-static_cast<double>(x))));
}

void route(const TrainContext& context, const RouterArgs& args) {
  const MoeConfig& moe = context.config->moe;
  const std::int64_t n = moe.experts;
  const auto used = static_cast<std::size_t>(moe.experts_used);
  context.for_rows(context.rows(), [&](int member, std::int64_t row) {
    float* scores = context.scratch_of(member);
    float* compared = scores + n;
    int* experts = args.experts + row * moe.experts_used;
    float* weights = args.weights + row * moe.experts_used;
    scores_of(moe, args.logits + row * n, scores);
    for (std::int64_t e = 0; e < n; ++e) {
      compared[e] = scores[e] + (args.choice_bias == nullptr ? 0.0f : args.choice_bias[e]);
    }
    choose_highest(moe, {compared, static_cast<std::size_t>(n)}, {experts, used});
    scores_of_chosen(moe, experts, scores, weights);
    const float divisor = moe.renormalise ? divisor_of(moe, weights) : 1.0f;
    for (std::size_t i = 0; i < used; ++i) weights[i] = weights[i] / divisor * moe.weight_scale;
  });
}

void add_probabilities(const TrainContext& context, const float* logits, double* sums) {
  const std::int64_t n = context.router_dim();
  context.for_chunks([&](int member, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* partial = clear_partial_sums(context, chunk, n);
    float* row_of = context.scratch_of(member);
    for (std::int64_t row = first; row < last; ++row) {
      softmax(logits + row * n, n, row_of);
      context.kernels->add(row_of, n, partial);
    }
  });
  fold_partial_sums(context, n);
  for (std::int64_t e = 0; e < n; ++e) sums[e] += static_cast<double>(context.partial_sums[e]);
}

void route_backward(const TrainContext& context, const RouterBackwardArgs& args) {
  const MoeConfig& moe = context.config->moe;
  const std::int64_t n = moe.experts;
  context.for_rows(context.rows(), [&](int member, std::int64_t row) {
    float* scratch = context.scratch_of(member);
    route_row_backward(moe, args, row, scratch, scratch + n, scratch + 2 * n);
    context.pack_operand(args.dlogits + row * n, n, context.operand_at(args.dlogits_operand, row * n));
  });
}

}  // namespace butterfly
