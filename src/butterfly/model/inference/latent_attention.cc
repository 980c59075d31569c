#include "butterfly/model/inference/latent_attention.h"

#include <array>
#include <cstring>

#include "butterfly/model/core/finite_weights.h"
#include "butterfly/model/inference/attention.h"

namespace butterfly {
namespace {

/// One matrix for each head of the shard, of `rows` rows.
Result<std::vector<PackedMatrix>> load_heads(const WeightSource& source, const std::string& name, const Shard& shard,
                                             const WeightPart& part, ThreadTeam& team) {
  std::vector<PackedMatrix> heads;
  if (part.empty()) return heads;
  BF_ASSIGN_OR_RETURN(const WeightView view, source.find_part(name, part));
  BF_TRY(check_finite(source, name, view.matrix(), team));
  const std::int64_t rows = part.of_rows.size() / shard.heads.size();
  for (std::int64_t head = 0; head < shard.heads.size(); ++head) {
    const WeightView own = view.cut({head * rows, (head + 1) * rows}, part.of_cols);
    BF_ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::pack(own.matrix(), team));
    heads.push_back(std::move(matrix));
  }
  source.release(view);
  return heads;
}

/// One matmul for each head: x has heads * rows rows, those of a head behind one another; y[head] begins at
/// y + head * y_step.
void run_heads(const Compute& compute, const std::vector<PackedMatrix>& matrices, const ActivationRows& x, float* y,
               std::int64_t y_step, std::int64_t y_stride) {
  const auto heads = static_cast<std::int64_t>(matrices.size());
  prepare_rows(compute, x, row_form({&matrices.front()}));
  const std::int64_t rows = x.rows / heads;
  std::vector<ActivationRows> inputs(matrices.size(), x);
  std::vector<LinearJob> jobs;
  jobs.reserve(matrices.size());
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto at = static_cast<std::size_t>(head);
    const std::int64_t first = head * rows;
    ActivationRows& own = inputs[at];
    own.rows = rows;
    own.values += first * x.cols;
    if (x.quants != nullptr) {
      own.quants += first * x.cols;
      own.scales += first * x.cols / kQuantBlock;
      own.sums += first * x.cols / kQuantBlock;
    }
    jobs.push_back({.weights = &matrices[at],
                    .x = &own,
                    .slices = SliceBorders::single(x.cols),
                    .y = y + head * y_step,
                    .y_stride = y_stride});
  }
  run_linear(*compute.kernels, *compute.team, jobs, trace::Zone::kLatent);
}

void norm_rows(const AttentionStep& step, const std::vector<float>& weight, std::int64_t stride, float* x) {
  const auto width = static_cast<std::int64_t>(weight.size());
  const trace::Scope scope(trace::Zone::kNorm, work_on_rows(step.batch.rows(), width, 2 * width));
  for_each_row(step.compute, step.batch.rows(), width, [&](std::int64_t row) {
    step.compute.kernels->rms_norm(x + row * stride, weight.data(), step.config.latent_epsilon(), width,
                                   x + row * stride);
  });
}

/// What the block's input gives by the matrices that read it: the shard's queries, and a row of the cache for each
/// token, normed but not rotated.
struct Projected {
  float* queries = nullptr;  // [rows, heads * head_dim]
  float* cached = nullptr;   // [rows, cached_key_dim]
};

Result<Projected> project(const AttentionStep& step, const LatentWeights& weights, const ActivationRows& input) {
  const Compute& compute = step.compute;
  const std::int64_t rows = step.batch.rows();
  const std::int64_t rank = step.config.latent.query_rank;
  const LinearWeights& first = rank > 0 ? weights.query_down : weights.query;
  Projected projected;
  BF_ASSIGN_OR_RETURN(projected.queries, allocate_floats(compute, rows, step.shard.q_dim()));
  BF_ASSIGN_OR_RETURN(projected.cached, allocate_floats(compute, rows, step.config.cached_key_dim()));
  BF_ASSIGN_OR_RETURN(float* low, allocate_floats(compute, rows, rank));
  const SliceBorders whole = SliceBorders::single(step.config.model_dim);
  const std::array jobs{
      LinearJob{.weights = &first.matrix, .x = &input, .slices = whole, .y = rank > 0 ? low : projected.queries},
      LinearJob{.weights = &weights.latent.matrix, .x = &input, .slices = whole, .y = projected.cached}};
  run_linear(*compute.kernels, *compute.team, jobs, trace::Zone::kLatent);
  norm_rows(step, weights.latent_norm, step.config.cached_key_dim(), projected.cached);
  if (rank == 0) return projected;
  norm_rows(step, weights.query_norm, rank, low);
  BF_ASSIGN_OR_RETURN(const auto x, prepared_rows(compute, rows, rank, low, row_form({&weights.query.matrix})));
  const LinearJob job{
      .weights = &weights.query.matrix, .x = &x, .slices = SliceBorders::single(rank), .y = projected.queries};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1), trace::Zone::kQuery);
  return projected;
}

/// Rotates and caches the rows of the cache; takes queries apart into what goes to the latent, [heads][rows][plain],
/// and what is rotated, which lies behind the place of the other in `turned`, [rows][heads][cached_key_dim].
void rotate_and_cache(const AttentionStep& step, const Projected& projected, float* plain, float* turned) {
  const std::int64_t rows = step.batch.rows();
  const std::int64_t heads = step.shard.heads.size();
  const std::int64_t rope = step.config.rope.dim;
  const std::int64_t plain_dim = step.config.head_dim - rope;
  const std::int64_t key_dim = step.config.cached_key_dim();
  const std::int64_t latent = step.config.latent.dim;
  const std::int64_t pairs = static_cast<std::int64_t>(step.rotary.cos.size()) / rows;
  const std::int64_t width = step.shard.q_dim() + key_dim;
  trace::Work work = work_on_rows(rows, width, width + heads * step.config.head_dim + 2 * pairs);
  work.bytes +=
      static_cast<std::uint64_t>(rows) * cached_bytes(step.cache.options().type, static_cast<std::uint64_t>(key_dim));
  const trace::Scope scope(trace::Zone::kRotary, work);
  std::int64_t first_row = 0;
  for (const SequenceRun& run : step.batch.runs) {
    for_each_row(step.compute, run.rows, heads * key_dim, [&](std::int64_t i) {
      const std::int64_t row = first_row + i;
      const float* cos = step.rotary.cos.data() + row * pairs + step.layer.first_pair;
      const float* sin = step.rotary.sin.data() + row * pairs + step.layer.first_pair;
      float* key = projected.cached + row * key_dim;
      rotate_head(step.compute, step.layer, cos, sin, key + latent);
      step.cache.store_key(*step.compute.kernels, {run.sequence, step.cache_layer, 0, run.position + i}, key);
      for (std::int64_t head = 0; head < heads; ++head) {
        const float* query = projected.queries + row * step.shard.q_dim() + head * step.config.head_dim;
        std::memcpy(plain + (head * rows + row) * plain_dim, query,
                    static_cast<std::size_t>(plain_dim) * sizeof(float));
        float* turning = turned + (row * heads + head) * key_dim + latent;
        std::memcpy(turning, query + plain_dim, static_cast<std::size_t>(rope) * sizeof(float));
        rotate_head(step.compute, step.layer, cos, sin, turning);
      }
    });
    first_row += run.rows;
  }
}

}  // namespace

RowForm LatentWeights::input_form() const {
  const LinearWeights& first = query_norm.empty() ? query : query_down;
  return row_form({&first.matrix, &latent.matrix});
}

std::uint64_t LatentWeights::packed_bytes() const {
  std::uint64_t bytes = (query_norm.size() + latent_norm.size()) * sizeof(float);
  for (const LinearWeights* linear : {&query_down, &query, &latent}) bytes += linear->matrix.bytes();
  for (const auto* heads : {&to_latent, &from_latent}) {
    for (const PackedMatrix& matrix : *heads) bytes += matrix.bytes();
  }
  return bytes;
}

Result<LatentWeights> load_latent_weights(const ModelConfig& config, const Shard& shard, const WeightSource& source,
                                          const std::string& prefix, ThreadTeam& team) {
  LatentWeights weights;
  const std::int64_t dim = config.latent.dim;
  const std::int64_t rank = config.latent.query_rank;
  const std::int64_t width = config.model_dim;
  const auto wanted = [&](std::int64_t size) { return IndexRange{0, shard.heads.size() > 0 ? size : 0}; };
  const auto of_heads = [&](std::int64_t rows) { return IndexRange{shard.heads.begin * rows, shard.heads.end * rows}; };
  const auto load = [&](LinearWeights& target, const char* name, const WeightPart& part) -> Status {
    BF_ASSIGN_OR_RETURN(target, load_linear(source, prefix + name, {.matrix = part}, team));
    return {};
  };
  if (rank > 0) {
    BF_TRY(load(weights.query_down, "attn_q_a", {rank, width, wanted(rank), {0, width}}));
    BF_ASSIGN_OR_RETURN(weights.query_norm, load_vector(source, prefix + "attn_q_a_norm.weight", rank, {0, rank}));
    BF_TRY(load(weights.query, "attn_q_b", {config.q_dim(), rank, shard.q_rows, {0, rank}}));
  } else {
    BF_TRY(load(weights.query, "attn_q", {config.q_dim(), width, shard.q_rows, {0, width}}));
  }
  BF_TRY(load(weights.latent, "attn_kv_a_mqa", {config.cached_key_dim(), width, shard.k_rows, {0, width}}));
  BF_ASSIGN_OR_RETURN(weights.latent_norm, load_vector(source, prefix + "attn_kv_a_norm.weight", dim, {0, dim}));
  const std::int64_t plain = config.head_dim - config.rope.dim;
  const std::int64_t values = config.latent.value_dim;
  BF_ASSIGN_OR_RETURN(weights.to_latent, load_heads(source, prefix + "attn_k_b.weight", shard,
                                                    {config.heads * dim, plain, of_heads(dim), {0, plain}}, team));
  BF_ASSIGN_OR_RETURN(weights.from_latent, load_heads(source, prefix + "attn_v_b.weight", shard,
                                                      {config.heads * values, dim, of_heads(values), {0, dim}}, team));
  return weights;
}

Status mix_latent_heads(const AttentionStep& step, const LatentWeights& weights, const ActivationRows& input,
                        float* mixed) {
  const Compute& compute = step.compute;
  const std::int64_t rows = step.batch.rows();
  const std::int64_t heads = step.shard.heads.size();
  const std::int64_t key_dim = step.config.cached_key_dim();
  const std::int64_t latent = step.config.latent.dim;
  const std::int64_t plain_dim = step.config.head_dim - step.config.rope.dim;
  const std::int64_t value_dim = step.config.latent.value_dim;
  BF_ASSIGN_OR_RETURN(const Projected projected, project(step, weights, input));
  BF_ASSIGN_OR_RETURN(float* plain, allocate_floats(compute, heads * rows, plain_dim));
  BF_ASSIGN_OR_RETURN(float* queries, allocate_floats(compute, heads * rows, key_dim));
  BF_ASSIGN_OR_RETURN(float* latents, allocate_floats(compute, heads * rows, latent));
  rotate_and_cache(step, projected, plain, queries);
  BF_ASSIGN_OR_RETURN(const auto x, allocate_activations(*compute.arena, heads * rows, plain_dim, plain));
  run_heads(compute, weights.to_latent, x, queries, key_dim, heads * key_dim);
  BF_TRY(attend(compute, step.config, step.layer, step.shard, step.batch, step.cache_layer, step.cache,
                {queries, heads * key_dim, key_dim}, {latents, latent, rows * latent}));
  BF_ASSIGN_OR_RETURN(const auto y, allocate_activations(*compute.arena, heads * rows, latent, latents));
  run_heads(compute, weights.from_latent, y, mixed, value_dim, heads * value_dim);
  return {};
}

}  // namespace butterfly
