#include "butterfly/model/inference/embedding.h"

#include <cstring>
#include <vector>

#include "butterfly/model/inference/tensor_group.h"

namespace butterfly {
namespace {

/// Rows `held` of a table.
Result<std::shared_ptr<const PackedMatrix>> load_table(const WeightSource& source, const std::string& name,
                                                       std::int64_t rows, std::int64_t cols, const IndexRange& held,
                                                       ThreadTeam& team) {
  const LinearPart part{.matrix = {.rows = rows, .cols = cols, .of_rows = held, .of_cols = {0, cols}}};
  BF_ASSIGN_OR_RETURN(LinearWeights linear, load_linear(source, name, part, team));
  return std::make_shared<const PackedMatrix>(std::move(linear.matrix));
}

}  // namespace

Result<Embedding> Embedding::load(const ModelConfig& config, const WeightSource& source, ThreadTeam& team,
                                  const HeldSlices& slices) {
  Embedding embedding;
  embedding.vocab_ = config.vocab;
  embedding.context_ = config.context;
  embedding.scale_ = config.embedding_scale;
  embedding.held_ = shard_of(config, slices).vocab;
  BF_ASSIGN_OR_RETURN(embedding.tokens_,
                      load_table(source, "token_embd", config.vocab, config.model_dim, embedding.held_, team));
  if (config.position == PositionKind::kLearned) {
    const IndexRange all{0, config.context};
    BF_ASSIGN_OR_RETURN(embedding.positions_,
                        load_table(source, "position_embd", config.context, config.model_dim, all, team));
  }
  return embedding;
}

Status Embedding::check(const Batch& batch, std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token.value < 0 || token.value >= vocab_) {
      return make_error(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", token.value, vocab_);
    }
  }
  for (const SequenceRun& run : batch.runs) {
    if (positions_ && run.position + run.rows > context_) {
      return make_error(ErrorCode::kInvalidArgument, "position {} is outside the context of {}",
                        run.position + run.rows - 1, context_);
    }
  }
  return {};
}

void Embedding::forward(const Batch& batch, std::span<const TokenId> tokens, std::span<float> x) const {
  const std::size_t dim = x.size() / tokens.size();
  std::vector<float> position_row(positions_ ? dim : 0);
  std::size_t row = 0;
  for (const SequenceRun& run : batch.runs) {
    for (std::int32_t i = 0; i < run.rows; ++i, ++row) {
      const TokenId token = tokens[row];
      if (!held_.contains(token.value)) continue;
      const std::span<float> out = x.subspan(row * dim, dim);
      tokens_->unpack_row(token.value - held_.begin, out);
      if (scale_ != 1.0f) {
        for (float& value : out) value = value * scale_;
      }
      if (!positions_) continue;
      positions_->unpack_row(run.position + i, position_row);
      for (std::size_t d = 0; d < dim; ++d) out[d] = out[d] + position_row[d];
    }
  }
}

std::uint64_t Embedding::packed_bytes() const {
  return tokens_->bytes() + (positions_ ? positions_->bytes() : 0);
}

Result<Head> Head::load(const ModelConfig& config, const WeightSource& source, const Embedding* embedding,
                        ThreadTeam& team, const HeldSlices& slices) {
  Head head;
  head.config_ = config;
  head.held_ = shard_of(config, slices).vocab;
  if (config.head_bias && head.held_.size() > 0) {
    BF_ASSIGN_OR_RETURN(head.bias_, load_vector(source, "output.bias", config.vocab, head.held_));
  }
  if (config.norm_place != NormPlace::kAfter) {
    BF_ASSIGN_OR_RETURN(head.norm_, load_norm(source, "output_norm", config));
  }
  if (config.tied_head && embedding != nullptr) {
    head.matrix_ = embedding->table();
  } else {
    BF_ASSIGN_OR_RETURN(head.matrix_, load_table(source, config.tied_head ? "token_embd" : "output", config.vocab,
                                                 config.model_dim, head.held_, team));
  }
  return head;
}

/// The rows that get logits, normed.
Result<ActivationRows> Head::gather_rows(const Compute& compute, const Batch& batch, const float* x) const {
  const std::int64_t dim = config_.model_dim;
  const std::int64_t rows = batch.logit_rows();
  BF_ASSIGN_OR_RETURN(const auto gathered,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(rows * dim)));
  std::int64_t first_row = 0;
  std::int64_t at = 0;
  for (const SequenceRun& run : batch.runs) {
    const std::int64_t count = run.rows - run.logits_from;
    std::memcpy(gathered.data() + at * dim, x + (first_row + run.logits_from) * dim,
                static_cast<std::size_t>(count * dim) * sizeof(float));
    first_row += run.rows;
    at += count;
  }
  if (config_.norm_place != NormPlace::kAfter) {
    apply_norm(compute, config_, norm_, rows, gathered.data(), gathered.data());
  }
  BF_ASSIGN_OR_RETURN(const auto a, allocate_activations(*compute.arena, rows, dim, gathered.data()));
  if (matrix_->quantised()) {
    for_each_row(compute, rows, dim, [&](std::int64_t row) { quantize_activation_row(*compute.kernels, a, row); });
  }
  return a;
}

Status Head::forward(const Compute& compute, const Batch& batch, const float* x, std::span<float> logits) const {
  BF_ASSIGN_OR_RETURN(const ActivationRows a, gather_rows(compute, batch, x));
  LinearJob job{
      matrix_.get(), &a,           SliceBorders::single(config_.model_dim), bias_.empty() ? nullptr : bias_.data(),
      nullptr,       logits.data()};
  // The first member's slice of a single row is already where it belongs.
  const bool elsewhere = compute.group != nullptr && (a.rows > 1 || compute.group->rank() != 0);
  if (elsewhere) {
    BF_ASSIGN_OR_RETURN(const auto part,
                        compute.arena->allocate_array<float>(static_cast<std::uint64_t>(a.rows * held_.size())));
    job.y = part.data();
  }
  if (held_.size() > 0) run_linear(*compute.kernels, *compute.team, std::span(&job, 1));
  for_each_row(compute, a.rows, held_.size(), [&](std::int64_t row) {
    float* y = job.y + row * held_.size();
    if (config_.logit_scale != 1.0f) compute.kernels->scale(config_.logit_scale, held_.size(), y);
    if (config_.logit_cap != 0.0f) compute.kernels->soft_cap(config_.logit_cap, held_.size(), y);
  });
  return compute.group == nullptr ? Status{} : compute.group->gather_logits(compute, a.rows, job.y, logits);
}

std::uint64_t Head::packed_bytes() const {
  return matrix_->bytes() + (norm_.weight.size() + bias_.size()) * sizeof(float);
}

}  // namespace butterfly
