// What the passes of a TrainableTransformer share: its kernels, its matmuls, its threads, the sizes of a micro-batch,
// and scratch memory. Passes are free functions over it; each leaves its result in buffers that it is given. Rows are
// tokens: row s * seq + t is token t of sequence s. Borrowed everywhere; one pass at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/kernel/training/training_kernels.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/training/passes/transformer_options.h"
#include "butterfly/trace/zones.h"

namespace butterfly {

inline constexpr std::int64_t kNoParameter = -1;

/// Angles of one kind of rope; the magnitude of rotated elements is in them.
struct RopeAngles {
  const float* cos = nullptr;  // [seq, dim / 2]; null: nothing is rotated
  const float* sin = nullptr;
  std::int64_t pairs = 0;
  bool adjacent = false;
};

/// Matmuls of experts have whole multiples of this number of rows, so that few shapes are planned.
inline constexpr std::int64_t kPairAlign = 16;

struct TrainContext {
  const ModelConfig* config = nullptr;
  TransformerOptions options{};
  const TrainingKernels* kernels = nullptr;
  ThreadTeam* team = nullptr;
  Gemm* gemm = nullptr;        // of options.precision
  Gemm* exact_gemm = nullptr;  // fp32, for attention that is not fused

  const float* weights = nullptr;         // the flat arrays of the parameters
  const void* operand_weights = nullptr;  // the same as `gemm` takes them
  float* gradients = nullptr;
  /// For the first matmul for a weight in a backward pass: kNo where its gradients count as zero but are not.
  Accumulate weight_gradients = Accumulate::kYes;
  /// Of what computes forward: kRecompute within a backward pass.
  trace::Pass pass = trace::Pass::kForward;

  float* partial_sums = nullptr;    // [chunks(), partial_width]
  float* member_scratch = nullptr;  // [team, member_scratch_floats], 64-byte aligned
  std::int64_t member_scratch_floats = 0;
  std::array<RopeAngles, 2> ropes{};  // kMainRope, kLocalRope

  std::int64_t seq() const { return options.seq; }
  std::int64_t batch() const { return options.micro_batch; }
  std::int64_t rows() const { return seq() * batch(); }
  std::int64_t chunks() const { return (rows() + kGradientChunkRows - 1) / kGradientChunkRows; }
  std::int64_t qkv_dim() const { return config->q_dim() + 2 * std::int64_t{config->kv_dim()}; }
  /// What goes into the activation of an MLP of this width.
  std::int64_t mlp_in_dim(std::int64_t ff_dim) const { return (config->mlp == MlpKind::kGated ? 2 : 1) * ff_dim; }
  std::int64_t ffn_in_dim() const { return mlp_in_dim(config->ff_dim); }
  /// Pairs of a token and one of its experts, each expert's run of them filled up to whole kPairAlign.
  std::int64_t pairs_max() const {
    const MoeConfig& moe = config->moe;
    return moe.experts == 0 ? 0 : rows() * moe.experts_used + std::int64_t{moe.experts} * (kPairAlign - 1);
  }

  /// Whether the gradient of what attention or MLP gives is not that of the sum that it goes into.
  bool scales_outputs() const { return config->norms_outputs() || config->residual_scale != 1.0f; }
  /// Logits of a router.
  std::int64_t router_dim() const { return config->moe.experts; }

  bool bf16() const { return options.precision == Precision::kBfloat16; }
  std::size_t operand_bytes() const { return bf16() ? 2 : 4; }
  const void* operand_at(const void* base, std::int64_t elements) const {
    return static_cast<const std::byte*>(base) + static_cast<std::size_t>(elements) * operand_bytes();
  }
  void* operand_at(void* base, std::int64_t elements) const {
    return static_cast<std::byte*>(base) + static_cast<std::size_t>(elements) * operand_bytes();
  }
  /// This context, computing forward within a backward pass.
  TrainContext recomputing() const {
    TrainContext again = *this;
    again.pass = trace::Pass::kRecompute;
    return again;
  }

  float* scratch_of(int member) const { return member_scratch + member * member_scratch_floats; }

  /// Where a pass computes an operand's row: in its place, or in `scratch`, to be packed from there.
  float* operand_row(void* place, float* scratch) const { return bf16() ? scratch : static_cast<float*>(place); }
  /// `row` came from operand_row().
  void pack_operand(const float* row, std::int64_t n, void* place) const {
    if (bf16()) kernels->floats_to_bf16(row, n, static_cast<unsigned short*>(place));
  }

  /// work(member, row) for every row.
  template <typename Work>
  void for_rows(std::int64_t count, const Work& work) const {
    team->run([&](int member) {
      const WorkRange range = split_work(count, member, team->size());
      for (long row = range.begin; row < range.end; ++row) work(member, row);
    });
  }

  /// work(member, chunk, first row, last row) for every chunk of kGradientChunkRows rows: the unit of sums over rows.
  template <typename Work>
  void for_chunks(const Work& work) const {
    for_rows(chunks(), [&](int member, std::int64_t chunk) {
      const std::int64_t first = chunk * kGradientChunkRows;
      work(member, chunk, first, std::min(rows(), first + kGradientChunkRows));
    });
  }

  const float* weight_at(std::int64_t offset) const { return offset == kNoParameter ? nullptr : weights + offset; }
};

}  // namespace butterfly
