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
  embedding.config_ = config;
  embedding.held_ = shard_of(config, slices).vocab;
  const std::int64_t dim = config.table_dim();
  BF_ASSIGN_OR_RETURN(embedding.tokens_, load_table(source, "token_embd", config.vocab, dim, embedding.held_, team));
  if (config.position == PositionKind::kLearned) {
    const IndexRange all{0, config.context};
    BF_ASSIGN_OR_RETURN(embedding.positions_, load_table(source, "position_embd", config.context, dim, all, team));
  }
  if (config.token_types > 0) {
    const IndexRange all{0, config.token_types};
    BF_ASSIGN_OR_RETURN(const auto types, load_table(source, "token_types", config.token_types, dim, all, team));
    embedding.type_.resize(static_cast<std::size_t>(dim));
    types->unpack_row(0, embedding.type_);
  }
  if (config.embedding_norm) {
    BF_ASSIGN_OR_RETURN(embedding.norm_, load_norm(source, "token_embd_norm", config, dim));
  }
  if (config.embedding_dim > 0) {
    const LinearPart part{WeightPart::all(config.model_dim, dim), true};
    BF_ASSIGN_OR_RETURN(LinearWeights projection, load_linear(source, "token_embd_proj", part, team));
    embedding.projection_ = std::make_shared<const LinearWeights>(std::move(projection));
  }
  return embedding;
}

Status Embedding::check(const Batch& batch, std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token.value < 0 || token.value >= config_.vocab) {
      return make_error(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", token.value,
                        config_.vocab);
    }
  }
  for (const SequenceRun& run : batch.runs) {
    if (positions_ && run.position + run.rows > config_.context) {
      return make_error(ErrorCode::kInvalidArgument, "position {} is outside the context of {}",
                        run.position + run.rows - 1, config_.context);
    }
  }
  return {};
}

/// A row of each table is read, and their sum written.
trace::Work Embedding::table_work(std::int64_t rows) const {
  const std::int64_t width = config_.table_dim();
  trace::Work work = work_on_rows(rows, width, width);
  work.type = static_cast<std::uint8_t>(tokens_->type());
  for (const PackedMatrix* table : {tokens_.get(), positions_.get()}) {
    if (table == nullptr || table->rows() == 0) continue;
    work.bytes += static_cast<std::uint64_t>(rows) * table->bytes() / static_cast<std::uint64_t>(table->rows());
  }
  return work;
}

/// What the tables have for a token that is held.
void Embedding::sum_tables(TokenId token, std::int64_t position, std::span<float> out) const {
  tokens_->unpack_row(token.value - held_.begin, out);
  if (config_.embedding_scale != 1.0f) {
    for (float& value : out) value = value * config_.embedding_scale;
  }
  for (std::size_t d = 0; d < type_.size(); ++d) out[d] = out[d] + type_[d];
  if (!positions_) return;
  std::vector<float> position_row(out.size());
  positions_->unpack_row(position, position_row);
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = out[d] + position_row[d];
}

Status Embedding::forward(const Compute& compute, const Batch& batch, std::span<const TokenId> tokens,
                          std::span<float> x) const {
  std::vector<HeldRow> held;
  std::size_t row = 0;
  for (const SequenceRun& run : batch.runs) {
    for (std::int32_t i = 0; i < run.rows; ++i, ++row) {
      if (held_.contains(tokens[row].value)) held.push_back({row, run.position + i});
    }
  }
  if (projection_ != nullptr) return project(compute, held, tokens, x);
  const auto dim = static_cast<std::size_t>(config_.model_dim);
  const trace::Scope scope(trace::Zone::kEmbedding, table_work(std::ssize(held)));
  for_each_row(compute, static_cast<std::int64_t>(held.size()), 4 * config_.model_dim, [&](std::int64_t i) {
    const HeldRow& one = held[static_cast<std::size_t>(i)];
    const std::span<float> out = x.subspan(one.row * dim, dim);
    sum_tables(tokens[one.row], one.position, out);
    if (config_.embedding_norm) norm_row(*compute.kernels, config_, norm_, out.data(), out.data());
  });
  return {};
}

/// Rows of the tables' width, normed and projected.
Status Embedding::project(const Compute& compute, std::span<const HeldRow> held, std::span<const TokenId> tokens,
                          std::span<float> x) const {
  const auto rows = static_cast<std::int64_t>(held.size());
  const std::int64_t narrow = config_.table_dim();
  const std::int64_t wide = config_.model_dim;
  if (rows == 0) return {};
  BF_ASSIGN_OR_RETURN(float* sums, allocate_floats(compute, rows, narrow));
  BF_ASSIGN_OR_RETURN(float* projected, allocate_floats(compute, rows, wide));
  {
    const trace::Scope scope(trace::Zone::kEmbedding, table_work(rows));
    for_each_row(compute, rows, 4 * narrow, [&](std::int64_t i) {
      const HeldRow& one = held[static_cast<std::size_t>(i)];
      sum_tables(tokens[one.row], one.position, {sums + i * narrow, static_cast<std::size_t>(narrow)});
    });
  }
  if (config_.embedding_norm) apply_norm(compute, config_, norm_, rows, sums, sums);
  BF_ASSIGN_OR_RETURN(const auto a, prepared_rows(compute, rows, narrow, sums, row_form({&projection_->matrix})));
  const LinearJob job{&projection_->matrix,        &a,      SliceBorders::single(narrow),
                      projection_->bias_or_null(), nullptr, projected};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1));
  const trace::Scope scope(trace::Zone::kEmbedding, work_on_rows(rows, wide, 2 * wide));
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(x.data() + static_cast<std::int64_t>(held[static_cast<std::size_t>(i)].row) * wide,
                projected + i * wide, static_cast<std::size_t>(wide) * sizeof(float));
  }
  return {};
}

std::uint64_t Embedding::packed_bytes() const {
  return tokens_->bytes() + (positions_ ? positions_->bytes() : 0) + (projection_ ? projection_->bytes() : 0) +
         (type_.size() + norm_.weight.size() + norm_.bias.size()) * sizeof(float);
}

Result<Head> Head::load(const ModelConfig& config, const WeightSource& source, const Embedding* embedding,
                        ThreadTeam& team, const HeldSlices& slices) {
  Head head;
  head.config_ = config;
  head.held_ = shard_of(config, slices).vocab;
  if (config.norm_place != NormPlace::kAfter) {
    BF_ASSIGN_OR_RETURN(head.norm_, load_norm(source, "output_norm", config));
  }
  if (config.output == OutputKind::kHidden) return head;
  if (config.head_bias && head.held_.size() > 0) {
    BF_ASSIGN_OR_RETURN(head.bias_, load_vector(source, "output.bias", config.vocab, head.held_));
  }
  if (config.head_transform) BF_TRY(head.load_transform(source, team));
  if (config.tied_head && embedding != nullptr) {
    head.matrix_ = embedding->table();
  } else {
    BF_ASSIGN_OR_RETURN(head.matrix_, load_table(source, config.tied_head ? "token_embd" : "output", config.vocab,
                                                 config.table_dim(), head.held_, team));
  }
  return head;
}

Status Head::load_transform(const WeightSource& source, ThreadTeam& team) {
  const LinearPart part{WeightPart::all(config_.table_dim(), config_.model_dim), config_.head_transform_bias};
  BF_ASSIGN_OR_RETURN(LinearWeights dense, load_linear(source, "output_dense", part, team));
  dense_ = std::make_shared<const LinearWeights>(std::move(dense));
  BF_ASSIGN_OR_RETURN(dense_norm_, load_norm(source, "output_dense_norm", config_, config_.table_dim()));
  return {};
}

/// The rows that are wanted, normed.
Result<float*> Head::gather_rows(const Compute& compute, const Batch& batch, const float* x) const {
  const std::int64_t dim = config_.model_dim;
  const std::int64_t rows = batch.logit_rows();
  BF_ASSIGN_OR_RETURN(float* gathered, allocate_floats(compute, rows, dim));
  trace::Scope scope(trace::Zone::kNorm, work_on_rows(rows, dim, 4 * dim));
  std::int64_t first_row = 0;
  std::int64_t at = 0;
  for (const SequenceRun& run : batch.runs) {
    const std::int64_t count = run.logit_rows();
    std::memcpy(gathered + at * dim, x + (first_row + run.logits_from) * dim,
                static_cast<std::size_t>(count * dim) * sizeof(float));
    first_row += run.rows;
    at += count;
  }
  if (config_.norm_place == NormPlace::kAfter) {
    scope.set_zone(trace::Zone::kResidual);  // copied as they are
    return gathered;
  }
  for_each_row(compute, rows, dim, [&](std::int64_t row) {
    norm_row(*compute.kernels, config_, norm_, gathered + row * dim, gathered + row * dim);
  });
  return gathered;
}

/// Dense, activation and norm: rows of the width of the head's matrix.
Result<float*> Head::transform(const Compute& compute, std::int64_t rows, float* x) const {
  const std::int64_t width = config_.table_dim();
  BF_ASSIGN_OR_RETURN(const auto a, prepared_rows(compute, rows, config_.model_dim, x, row_form({&dense_->matrix})));
  BF_ASSIGN_OR_RETURN(float* y, allocate_floats(compute, rows, width));
  const LinearJob job{&dense_->matrix, &a, SliceBorders::single(config_.model_dim), dense_->bias_or_null(), nullptr, y};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1));
  const PlainActivation activate =
      plain_activation(*compute.kernels, config_.head_gelu ? Activation::kGeluErf : config_.activation);
  {
    const trace::Scope scope(trace::Zone::kActivation, work_on_rows(rows, width, 2 * width));
    for_each_row(compute, rows, 4 * width,
                 [&](std::int64_t row) { activate(y + row * width, width, y + row * width); });
  }
  apply_norm(compute, config_, dense_norm_, rows, y, y);
  return y;
}

Status Head::forward(const Compute& compute, const Batch& batch, const float* x, std::span<float> out) const {
  const std::int64_t rows = batch.logit_rows();
  BF_ASSIGN_OR_RETURN(float* gathered, gather_rows(compute, batch, x));
  if (config_.output == OutputKind::kHidden) {
    const bool first = compute.group == nullptr || compute.group->rank() == 0;
    if (first) std::memcpy(out.data(), gathered, out.size_bytes());
    return {};
  }
  if (dense_ != nullptr) {
    BF_ASSIGN_OR_RETURN(gathered, transform(compute, rows, gathered));
  }
  const std::int64_t dim = config_.table_dim();
  BF_ASSIGN_OR_RETURN(const auto a, prepared_rows(compute, rows, dim, gathered, row_form({matrix_.get()})));
  LinearJob job{matrix_.get(), &a,        SliceBorders::single(dim), bias_.empty() ? nullptr : bias_.data(),
                nullptr,       out.data()};
  // The first member's slice of a single row is already where it belongs.
  const bool elsewhere = compute.group != nullptr && (rows > 1 || compute.group->rank() != 0);
  if (elsewhere) {
    BF_ASSIGN_OR_RETURN(job.y, allocate_floats(compute, rows, held_.size()));
  }
  if (held_.size() > 0) run_linear(*compute.kernels, *compute.team, std::span(&job, 1), trace::Zone::kHead);
  if (config_.logit_scale != 1.0f || config_.logit_cap != 0.0f) {
    const trace::Scope scope(trace::Zone::kActivation, work_on_rows(rows, held_.size(), 2 * held_.size()));
    for_each_row(compute, rows, held_.size(), [&](std::int64_t row) {
      float* y = job.y + row * held_.size();
      if (config_.logit_scale != 1.0f) compute.kernels->scale(config_.logit_scale, held_.size(), y);
      if (config_.logit_cap != 0.0f) compute.kernels->soft_cap(config_.logit_cap, held_.size(), y);
    });
  }
  return compute.group == nullptr ? Status{} : compute.group->gather_logits(compute, rows, job.y, out);
}

std::uint64_t Head::packed_bytes() const {
  const std::size_t vectors =
      norm_.weight.size() + norm_.bias.size() + bias_.size() + dense_norm_.weight.size() + dense_norm_.bias.size();
  return (matrix_ ? matrix_->bytes() : 0) + (dense_ ? dense_->bytes() : 0) + vectors * sizeof(float);
}

}  // namespace butterfly
