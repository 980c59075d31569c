#include "butterfly/model/training/train_embedding.h"

#include <cmath>
#include <cstring>

#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

std::size_t row_bytes_of(std::int64_t n) {
  return static_cast<std::size_t>(n) * sizeof(float);
}

IndexRange last_chunk(const TrainContext& context, const TrainScratch& scratch) {
  const std::int64_t chunks = (context.rows() + scratch.head_chunk_rows - 1) / scratch.head_chunk_rows;
  return {(chunks - 1) * scratch.head_chunk_rows, context.rows()};
}

/// One row of logits becomes its gradient. Apart, as a framework without fusion does it: softmax, loss, gradient.
float separate_cross_entropy(const TrainingKernels& kernels, float* logits, std::int64_t vocab, std::int64_t target) {
  // The gradient of the cross-entropy is the softmax but for the target's element: any other target gives that one.
  const std::int64_t other = target == 0 ? vocab - 1 : 0;
  kernels.softmax_cross_entropy(logits, vocab, other, 1.0f);
  logits[other] += 1.0f;
  // Smaller probabilities are not floats; their loss would be infinite where it is large.
  constexpr float kSmallest = 1e-37f;
  const float loss = -std::log(std::max(logits[target], kSmallest));
  for (std::int64_t i = 0; i < vocab; ++i) logits[i] -= i == target ? 1.0f : 0.0f;
  return loss;
}

/// One row of logits becomes its gradient; returns the loss. With a cap its slopes need `scratch`, [vocab].
float row_cross_entropy(const TrainContext& context, float* logits, std::int64_t target, float* scratch) {
  const TrainingKernels& kernels = *context.kernels;
  const ModelConfig& config = *context.config;
  const std::int64_t vocab = config.vocab;
  const bool scaled = config.logit_scale != 1.0f;
  for (std::int64_t i = 0; scaled && i < vocab; ++i) logits[i] *= config.logit_scale;
  if (config.logit_cap != 0.0f) kernels.cap_values(config.logit_cap, vocab, logits, scratch);
  const bool fused = context.options.fusion.cross_entropy;
  const float loss = fused ? kernels.softmax_cross_entropy(logits, vocab, target, 1.0f)
                           : separate_cross_entropy(kernels, logits, vocab, target);
  for (std::int64_t i = 0; config.logit_cap != 0.0f && i < vocab; ++i) logits[i] *= scratch[i];
  for (std::int64_t i = 0; scaled && i < vocab; ++i) logits[i] *= config.logit_scale;
  return loss;
}

/// Logits of rows [begin, end), their losses, and their gradients in dlogits.
Status lm_head_chunk(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                     const IndexRange& rows, std::span<const TokenId> targets) {
  const std::int64_t vocab = context.config->vocab;
  const std::int64_t n = context.config->model_dim;
  BF_TRY(run_matmul(context, trace::Zone::kHead, context.pass,
                    {.m = rows.end - rows.begin,
                     .n = vocab,
                     .k = n,
                     .a = context.operand_at(scratch.output_normed, rows.begin * n),
                     .b = context.operand_at(context.operand_weights, ends.head.parts[0].weight),
                     .c = scratch.logits,
                     .a_stride = n,
                     .b_stride = n,
                     .c_stride = vocab,
                     .b_transposed = Transpose::kYes,
                     .bias = context.weight_at(ends.head_bias)}));
  const trace::Scope scope(trace::Zone::kSoftmaxLoss, work_of({.rows = rows.size(),
                                                               .cols = vocab,
                                                               .bytes = 2 * sizeof(float) + (context.bf16() ? 2 : 0),
                                                               .pass = context.pass}));
  context.for_rows(rows.end - rows.begin, [&](int member, std::int64_t row) {
    float* logits = scratch.logits + row * vocab;
    const std::int64_t target = targets[static_cast<std::size_t>(rows.begin + row)].value;
    float& loss = scratch.losses[rows.begin + row];
    if (target < 0) {
      loss = 0.0f;
      std::memset(logits, 0, row_bytes_of(vocab));
    } else {
      loss = row_cross_entropy(context, logits, target, context.scratch_of(member));
    }
    context.pack_operand(logits, vocab, context.operand_at(scratch.dlogits, row * vocab));
  });
  return {};
}

/// The bias of the head: the sum over rows, in their order, of scale * dlogits.
void head_bias_backward(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                        const IndexRange& rows, float scale) {
  if (ends.head_bias == kNoParameter) return;
  const std::int64_t vocab = context.config->vocab;
  const trace::Scope scope(
      trace::Zone::kBias,
      work_of({.rows = rows.size(), .cols = vocab, .bytes = 3 * sizeof(float), .pass = trace::Pass::kWeightGradient}));
  context.team->run([&](int member) {
    const WorkRange columns = split_work(vocab, member, context.team->size());
    for (std::int64_t row = 0; row < rows.size(); ++row) {
      context.kernels->add_scaled(scratch.logits + row * vocab + columns.begin, scale, columns.end - columns.begin,
                                  context.gradients + ends.head_bias + columns.begin);
    }
  });
}

/// From the gradients in dlogits: branch rows = dlogits W, dW (+)= dlogits^T (scale * normed).
Status lm_head_chunk_backward(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                              const IndexRange& rows, Accumulate accumulate, float scale) {
  const std::int64_t vocab = context.config->vocab;
  head_bias_backward(context, ends, scratch, rows, scale);
  const std::int64_t n = context.config->model_dim;
  const std::int64_t weight = ends.head.parts[0].weight;
  BF_TRY(run_matmul(context, trace::Zone::kHead, trace::Pass::kInputGradient,
                    {.m = rows.end - rows.begin,
                     .n = n,
                     .k = vocab,
                     .a = scratch.dlogits,
                     .b = context.operand_at(context.operand_weights, weight),
                     .c = scratch.branch + rows.begin * n,
                     .a_stride = vocab,
                     .b_stride = n,
                     .c_stride = n}));
  return run_matmul(context, trace::Zone::kHead, trace::Pass::kWeightGradient,
                    {.m = vocab,
                     .n = n,
                     .k = rows.end - rows.begin,
                     .a = scratch.dlogits,
                     .b = context.operand_at(scratch.output_scaled, rows.begin * n),
                     .c = context.gradients + weight,
                     .a_stride = vocab,
                     .b_stride = n,
                     .c_stride = n,
                     .a_transposed = Transpose::kYes,
                     .accumulate = accumulate});
}

}  // namespace

Result<EmbeddingAndLmHead> make_embedding_and_lm_head(const ModelConfig& config, const ParameterSet& parameters,
                                                      std::int64_t first_block) {
  EmbeddingAndLmHead ends;
  BF_ASSIGN_OR_RETURN(const Parameter* token, parameters.find("token_embd.weight"));
  ends.token_embedding = token->offset;
  if (config.position == PositionKind::kLearned) {
    BF_ASSIGN_OR_RETURN(const Parameter* position, parameters.find("position_embd.weight"));
    ends.position_embedding = position->offset;
  }
  BF_ASSIGN_OR_RETURN(ends.output_norm, make_norm(parameters, "output_norm"));
  const char* head = config.tied_head ? "token_embd" : "output";
  BF_ASSIGN_OR_RETURN(ends.head, make_projection(parameters, {head}, Join::kNo));
  if (config.head_bias) {
    BF_ASSIGN_OR_RETURN(const Parameter* bias, parameters.find("output.bias"));
    ends.head_bias = bias->offset;
  }
  ends.embedding_range = {0, first_block};
  ends.head_range = {ends.output_norm.weight, parameters.padded_size()};
  return ends;
}

void embed(const TrainContext& context, const EmbeddingAndLmHead& ends, std::span<const TokenId> tokens, float* x) {
  const std::int64_t n = context.config->model_dim;
  const bool adds = ends.position_embedding != kNoParameter;
  const trace::Scope scope(trace::Zone::kEmbedding,
                           work_of({.rows = context.rows(), .cols = n, .bytes = (adds ? 3 : 2) * sizeof(float)}));
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    const std::int64_t token = tokens[static_cast<std::size_t>(row)].value;
    std::memcpy(x + row * n, context.weights + ends.token_embedding + token * n, row_bytes_of(n));
    const float scale = context.config->embedding_scale;
    for (std::int64_t i = 0; scale != 1.0f && i < n; ++i) x[row * n + i] *= scale;
    if (!adds) return;
    context.kernels->add(context.weights + ends.position_embedding + row % context.seq() * n, n, x + row * n);
  });
}

void embed_backward(const TrainContext& context, const EmbeddingAndLmHead& ends, std::span<const TokenId> tokens,
                    const float* dx) {
  const std::int64_t n = context.config->model_dim;
  const int members = context.team->size();
  const float scale = context.config->embedding_scale;
  const int sums = ends.position_embedding == kNoParameter ? 1 : 2;
  const trace::Scope scope(trace::Zone::kEmbedding,
                           work_of({.rows = context.rows(),
                                    .cols = n,
                                    .bytes = static_cast<std::uint64_t>(sums) * 3 * sizeof(float),
                                    .pass = trace::Pass::kWeightGradient}));
  // Each member owns some of the tokens, so every row of the embedding is summed in row order by one of them.
  context.team->run([&](int member) {
    for (std::int64_t row = 0; row < context.rows(); ++row) {
      const std::int64_t token = tokens[static_cast<std::size_t>(row)].value;
      if (token % members != member) continue;
      float* gradient = context.gradients + ends.token_embedding + token * n;
      if (scale == 1.0f) {
        context.kernels->add(dx + row * n, n, gradient);
      } else {
        context.kernels->add_scaled(dx + row * n, scale, n, gradient);
      }
    }
  });
  if (ends.position_embedding == kNoParameter) return;
  context.for_rows(context.seq(), [&](int, std::int64_t t) {
    for (std::int64_t row = t; row < context.rows(); row += context.seq()) {
      context.kernels->add(dx + row * n, n, context.gradients + ends.position_embedding + t * n);
    }
  });
}

Result<double> forward_lm_head(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                               const ResidualSum& before, std::span<const TokenId> targets) {
  residual_norm(context, {.parameters = ends.output_norm,
                          .x = before.stream,
                          .delta = before.delta,
                          .sum = scratch.output,
                          .statistics = scratch.output_norm,
                          .normed = scratch.output_normed});
  for (std::int64_t begin = 0; begin < context.rows(); begin += scratch.head_chunk_rows) {
    const IndexRange rows{begin, std::min(context.rows(), begin + scratch.head_chunk_rows)};
    BF_TRY(lm_head_chunk(context, ends, scratch, rows, targets));
  }
  double sum = 0.0;
  for (std::int64_t row = 0; row < context.rows(); ++row) sum += static_cast<double>(scratch.losses[row]);
  return sum;
}

Status backward_lm_head(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                        const HeadBackwardArgs& args) {
  const TrainContext again = context.recomputing();
  residual_norm(again, {.parameters = ends.output_norm,
                        .x = scratch.output,
                        .statistics = scratch.output_norm,
                        .normed = scratch.output_scaled,
                        .scale = args.scale});
  IndexRange rows = last_chunk(context, scratch);
  BF_TRY(lm_head_chunk_backward(context, ends, scratch, rows, context.weight_gradients, args.scale));
  while (rows.begin > 0) {
    rows = {rows.begin - scratch.head_chunk_rows, rows.begin};
    BF_TRY(lm_head_chunk(again, ends, scratch, rows, args.targets));
    BF_TRY(lm_head_chunk_backward(context, ends, scratch, rows, Accumulate::kYes, args.scale));
  }
  norm_backward(context, {.parameters = ends.output_norm,
                          .x = scratch.output,
                          .statistics = scratch.output_norm,
                          .dy = scratch.branch,
                          .dy_scale = args.scale,
                          .dx = scratch.dx,
                          .accumulate = Accumulate::kNo,
                          .dx_operand = scratch.dx_operand,
                          .bias_below = args.bias_below});
  return {};
}

}  // namespace butterfly
