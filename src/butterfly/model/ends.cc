#include "butterfly/model/ends.h"

#include <cstring>
#include <vector>

namespace butterfly {
namespace {

Result<std::shared_ptr<const PackedMatrix>> load_table(const WeightSource& source, const std::string& name,
                                                       std::int64_t rows, std::int64_t cols, ThreadTeam& team) {
  BF_ASSIGN_OR_RETURN(LinearWeights linear, load_linear(source, name, rows, cols, false, team));
  return std::make_shared<const PackedMatrix>(std::move(linear.matrix));
}

}  // namespace

Result<Embedding> Embedding::load(const ModelConfig& config, const WeightSource& source, ThreadTeam& team) {
  Embedding embedding;
  BF_ASSIGN_OR_RETURN(embedding.tokens_, load_table(source, "token_embd", config.vocab, config.model_dim, team));
  if (config.position == PositionKind::kLearned) {
    BF_ASSIGN_OR_RETURN(embedding.positions_,
                        load_table(source, "position_embd", config.context, config.model_dim, team));
  }
  return embedding;
}

Status Embedding::forward(const Batch& batch, std::span<const TokenId> tokens, std::span<float> x) const {
  const auto dim = static_cast<std::size_t>(tokens_->cols());
  std::vector<float> position_row(positions_ ? dim : 0);
  std::size_t row = 0;
  for (const SequenceRun& run : batch.runs) {
    for (std::int32_t i = 0; i < run.rows; ++i, ++row) {
      const TokenId token = tokens[row];
      if (token.value < 0 || token.value >= tokens_->rows()) {
        return make_error(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", token.value,
                          tokens_->rows());
      }
      const std::span<float> out = x.subspan(row * dim, dim);
      tokens_->unpack_row(token.value, out);
      if (!positions_) continue;
      const std::int64_t position = run.position + i;
      if (position >= positions_->rows()) {
        return make_error(ErrorCode::kInvalidArgument, "position {} is outside the context of {}", position,
                          positions_->rows());
      }
      positions_->unpack_row(position, position_row);
      for (std::size_t d = 0; d < dim; ++d) out[d] = out[d] + position_row[d];
    }
  }
  return {};
}

std::uint64_t Embedding::packed_bytes() const {
  return tokens_->bytes() + (positions_ ? positions_->bytes() : 0);
}

Result<Head> Head::load(const ModelConfig& config, const WeightSource& source, const Embedding* embedding,
                        ThreadTeam& team) {
  Head head;
  head.config_ = config;
  if (config.norm_place == NormPlace::kBefore) {
    BF_ASSIGN_OR_RETURN(head.norm_, load_norm(source, "output_norm", config));
  }
  if (config.tied_head && embedding != nullptr) {
    head.matrix_ = embedding->table();
  } else {
    BF_ASSIGN_OR_RETURN(head.matrix_, load_table(source, config.tied_head ? "token_embd" : "output", config.vocab,
                                                 config.model_dim, team));
  }
  return head;
}

Status Head::forward(const Compute& compute, const Batch& batch, const float* x, std::span<float> logits) const {
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
  if (config_.norm_place == NormPlace::kBefore) {
    apply_norm(compute, config_, norm_, rows, gathered.data(), gathered.data());
  }
  BF_ASSIGN_OR_RETURN(const auto a, allocate_activations(*compute.arena, rows, dim, gathered.data()));
  if (matrix_->quantised()) {
    for_each_row(compute, rows, dim, [&](std::int64_t row) { quantize_activation_row(*compute.kernels, a, row); });
  }
  const LinearJob job{matrix_.get(), &a, LaneBorders::single(dim), nullptr, nullptr, logits.data()};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1));
  return {};
}

std::uint64_t Head::packed_bytes() const {
  return matrix_->bytes() + norm_.weight.size() * sizeof(float);
}

}  // namespace butterfly
