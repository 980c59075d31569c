#include "butterfly/infer/request/embed.h"

#include <algorithm>
#include <cmath>

namespace butterfly {
namespace {

/// The weight of each row in a sum over rows.
std::vector<double> weights_of(Pooling pooling, std::size_t rows, std::size_t first) {
  std::vector<double> weights(rows, 1.0);
  double total = static_cast<double>(rows);
  if (pooling == Pooling::kWeightedMean) {
    total = 0;
    for (std::size_t i = 0; i < rows; ++i) total += weights[i] = static_cast<double>(first + i + 1);
  }
  if (pooling == Pooling::kMeanSqrt) total = std::sqrt(total);
  for (double& weight : weights) weight /= total;
  return weights;
}

void pool(Pooling pooling, std::span<const float> rows, std::size_t dim, std::size_t first, std::vector<float>& out) {
  const std::size_t count = rows.size() / dim;
  const auto row = [&](std::size_t i) { return rows.subspan(i * dim, dim); };
  if (pooling == Pooling::kCls || pooling == Pooling::kLast) {
    const auto chosen = row(pooling == Pooling::kCls ? 0 : count - 1);
    out.insert(out.end(), chosen.begin(), chosen.end());
    return;
  }
  if (pooling == Pooling::kMax) {
    std::vector<float> largest(row(0).begin(), row(0).end());
    for (std::size_t i = 1; i < count; ++i) {
      for (std::size_t d = 0; d < dim; ++d) largest[d] = std::max(largest[d], row(i)[d]);
    }
    out.insert(out.end(), largest.begin(), largest.end());
    return;
  }
  const std::vector<double> weights = weights_of(pooling, count, first);
  std::vector<double> sums(dim, 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    const auto values = row(i);
    for (std::size_t d = 0; d < dim; ++d) sums[d] += weights[i] * static_cast<double>(values[d]);
  }
  for (const double sum : sums) out.push_back(static_cast<float>(sum));
}

std::vector<float> apply_dense(const EmbeddingDense& dense, std::span<const float> x) {
  std::vector<float> y;
  for (std::size_t row = 0; row < static_cast<std::size_t>(dense.outputs); ++row) {
    double sum = dense.bias.empty() ? 0.0 : static_cast<double>(dense.bias[row]);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += static_cast<double>(dense.weight[row * x.size() + i]) * static_cast<double>(x[i]);
    }
    y.push_back(static_cast<float>(dense.activation == EmbeddingDense::Activation::kTanh ? std::tanh(sum) : sum));
  }
  return y;
}

/// Errors: kBadData where the numbers are too large to be one.
Status normalize(std::vector<float>& vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
  if (!std::isfinite(squares)) {
    return make_error(ErrorCode::kBadData,
                      "a vector of {} elements has a length of {}, expected a finite number: the model's weights are "
                      "damaged or too large",
                      vector.size(), std::sqrt(squares));
  }
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / length);
  return {};
}

/// How long the recipe's vectors are. Errors: kInvalidArgument, kBadData.
Status check_widths(const ModelConfig& config, const EmbedOptions& options) {
  if (config.output != OutputKind::kHidden) {
    return make_error(ErrorCode::kInvalidArgument, "{} was opened for logits, vectors come from hidden rows",
                      config.name);
  }
  auto width = static_cast<std::int64_t>(options.recipe.poolings.size()) * config.model_dim;
  for (const EmbeddingDense& dense : options.recipe.dense) {
    if (dense.inputs != width) {
      return make_error(ErrorCode::kBadData, "a dense layer after pooling has {} inputs, it is given {}", dense.inputs,
                        width);
    }
    width = dense.outputs;
  }
  if (width < 1 || options.dim < 0 || options.dim > width) {
    return make_error(ErrorCode::kInvalidArgument, "{} elements were asked for, the model's vectors have {}",
                      options.dim, width);
  }
  return {};
}

}  // namespace

Result<std::vector<std::vector<float>>> embed(Pipeline& pipeline, const ModelConfig& config,
                                              std::span<const EmbedText> texts, const EmbedOptions& options,
                                              std::stop_token stop) {
  BF_TRY(check_widths(config, options));
  const auto& poolings = options.recipe.poolings;
  const bool last_alone = poolings == std::vector{Pooling::kLast};
  const bool first_alone = poolings == std::vector{Pooling::kCls};
  std::vector<WholeText> whole;
  for (const EmbedText& text : texts) {
    const auto last = static_cast<std::int32_t>(text.tokens.size()) - 1;
    const std::int32_t skipped = options.recipe.pool_prompt ? 0 : std::min(text.prompt_tokens, last);
    const std::int32_t from = std::max(last_alone ? last : skipped, 0);
    whole.push_back({text.tokens, from, first_alone ? from + 1 : 0});
  }
  TextBatchOptions batches = options.batches;
  batches.kind = config.encoder_layers > 0 ? BatchKind::kEncode : BatchKind::kContinue;
  batches.context = config.context;
  std::vector<std::vector<float>> vectors(texts.size());
  const auto visit = [&](std::size_t index, std::span<const float> rows) -> Status {
    std::vector<float>& vector = vectors[index];
    for (const Pooling pooling : poolings) {
      pool(pooling, rows, static_cast<std::size_t>(config.model_dim), static_cast<std::size_t>(whole[index].rows_from),
           vector);
    }
    for (const EmbeddingDense& dense : options.recipe.dense) vector = apply_dense(dense, vector);
    if (options.dim > 0) vector.resize(static_cast<std::size_t>(options.dim));
    return options.normalize ? normalize(vector) : Status{};
  };
  BF_TRY(run_texts(pipeline, whole, batches, visit, std::move(stop)));
  return vectors;
}

}  // namespace butterfly
