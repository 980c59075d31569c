// What each part of a model costs: bytes of weights, bytes of keys and values, operations, bytes that travel; and how
// long a node takes for it. Formulas know shapes and types, never file formats. Their sources are in
// docs/decisions/0009-cost-model-and-strategies.md. Plain values, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "butterfly/machine/node.h"
#include "butterfly/model/core/config.h"
#include "butterfly/plan/cost/share.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// The experts of a block, or those that a share has. Positions are assumed to choose among all experts evenly.
struct ExpertCost {
  double held = 0.0;                  // how many
  double share = 0.0;                 // of the positions, that one expert sees: experts_used / experts
  double bytes = 0.0;                 // of one
  double flops = 0.0;                 // of one, for a position that goes through it
  double touched(double rows) const;  // experts that a step of this number of rows is expected to read
};

/// One part of a model (a block, the embedding, the head): what it stores and what one position costs.
struct PartCost {
  std::uint64_t weight_bytes = 0;  // stored; what is not of experts is read once per step, but for the embedding
  double flops = 0.0;              // per position, 2 per weight of a matrix; attention over the past is extra
  double moved_bytes = 0.0;        // per position, of activations between its matmuls, read and written
  ExpertCost experts{};            // of which weight_bytes and flops are the sum, with the rest
};

/// What a layer does with a text: continues it, encodes it, or continues one while it attends to another that was
/// encoded.
enum class LayerRole : std::uint8_t { kContinues, kEncodes, kAttendsToEncoded };

/// What the layers of a model differ in, as far as it changes what they cost.
struct BlockKind {
  bool dense = false;  // beside layers with experts
  LayerRole role = LayerRole::kContinues;
  int window = 0;  // as ModelConfig::windows
  friend auto operator<=>(const BlockKind&, const BlockKind&) = default;
};

/// Of more kinds the narrower windows count as the next wider one that is counted.
inline constexpr std::size_t kBlockKindsMax = 6;

/// How many of each kind a run of layers has.
struct BlockCounts {
  std::array<int, kBlockKindsMax> of{};  // by ModelCost::kinds
  int shared = 0;                        // of them, those whose weights the run has already in the layer before
  int total() const { return std::accumulate(of.begin(), of.end(), 0); }
  friend auto operator<=>(const BlockCounts&, const BlockCounts&) = default;
};

/// What one member of a tensor group has of each part; with all slices, the part itself.
struct ShareCost {
  PartCost block;          // with experts, where the model has any
  PartCost dense_block;    // of the other layers; the same where there are none
  PartCost encoded_query;  // what a layer has besides to attend to an encoded text: queries and output, for each row
  PartCost encoded_keys;   // and keys and values, for each position of that text
  PartCost embedding;
  PartCost head;                  // with its matrix, tied or not
  std::uint64_t tied_bytes = 0;   // stored once where embedding and tied head meet on one node
  std::uint64_t kv_bytes = 0;     // per block and position of each text that it attends to
  double attention_flops = 0.0;   // per block, position and one that it sees: scores and weighted sum, 4 * q
  std::uint64_t logit_bytes = 0;  // per position, f32
  int subtrees = 1;               // sums of model_dim that each exchange sends per position
  int expert_subtrees = 1;        // of the one that adds up experts

  const PartCost& block_of(const BlockKind& kind) const { return kind.dense ? dense_block : block; }
  /// Weights of a block of this kind, and what its cache has for each position.
  std::uint64_t stored_bytes(const BlockKind& kind) const {
    const bool two_texts = kind.role == LayerRole::kAttendsToEncoded;
    return block_of(kind).weight_bytes + (two_texts ? encoded_query.weight_bytes + encoded_keys.weight_bytes : 0);
  }
  std::uint64_t cached_bytes_of(const BlockKind& kind) const {
    return kind.role == LayerRole::kAttendsToEncoded ? 2 * kv_bytes : kv_bytes;
  }
};

/// What a run of the slices of the experts adds to a share without experts.
struct HeldExpertsCost {
  std::uint64_t weight_bytes = 0;
  double flops = 0.0;
  double moved_bytes = 0.0;
  ExpertCost experts{};
  int subtrees = 0;
};

/// With d = model_dim, q = heads * head_dim, k = kv_heads * head_dim, f = ff_dim, matrices in config.weight_type:
///   block      d*q + 2*d*k + q*d + (3 if gated, else 2)*d*f; norms and biases in f32
///   embedding  vocab*d, and context*d for learned positions
///   head       vocab*d and the last norm; a tied head stores no second matrix beside the embedding, but reads it
///   moved      of a block, 2 bytes each, as half of these floats are found in a cache: 10*d (two norms, two residual
///   sums, two rows made ready for matmuls), 5*q and
///              6*k (rotation, cache, attention's result), 6*f if gated, else 4*f
///   experts    instead of 3*d*f in blocks that have them: experts*d (router), 3*d*f of each expert, of which a step
///   reads those that its rows are expected to choose, and the shared one. Layers that are dense beside them are
///   counted as such
///   kv         2 * kv_heads rows of head_dim elements, of the cache's type, per block and position
/// Layers behind an encoder have attention's matrices, a norm and the cache twice; layers that share weights store them
/// once on a node. Caches keep every position, also in layers with a window and in encoders. A model of hidden rows has
/// a head of the last norm alone. With latent attention (l = latent.dim, r = rope.dim, v = value_dim, h = heads): d*q
/// (or d*rank + rank*q) + d*(l+r) + h*l*(head_dim-r) + h*v*l + h*v*d instead of the first three, 2*h*(2*l+r) operations
/// for each earlier position, and one row of l+r elements in the cache of each member. A share of slices has their
/// heads, the key-value heads that those use, their columns of the MLP and their slice of the vocabulary, and of the
/// experts the whole ones of its other range; norms, routers and the biases of sums are everyone's.
struct ModelCost : ShareCost {
  DType weight_type = DType::kF32;
  std::uint64_t row_bytes = 0;        // activations of one position between stages, f32: 4 * d
  std::uint64_t workspace_bytes = 0;  // per row of a step: the widest intermediate results of a block
  std::uint64_t parameters = 0;
  DType kv_type = DType::kF16;
  double exchanges_by_slices = 2.0;  // of a block that is not dense beside others, among a tensor group: attention, the
                                     // MLP or a shared expert
  double exchanges_by_experts = 0.0;
  std::vector<BlockKind> kinds{};             // ascending
  std::vector<std::uint8_t> kind_of{};        // of each layer, in `kinds`
  std::vector<BlockCounts> before{};          // the layers before each, and all
  std::vector<int> expert_borders{};          // first expert of each slice of them, and how many; empty: none
  std::vector<ShareCost> of_slices{};         // without experts, by run()
  std::vector<HeldExpertsCost> of_experts{};  // by run()
  std::vector<BlockCounts> counts_of_runs{};  // of runs of layers: each that there is once, shorter runs first

  /// Runs of slices, empty ones alike, as an index.
  static constexpr std::size_t kRuns = std::size_t{kReductionSlices} * kReductionSlices + 1;
  static std::size_t run(const SliceRange& slices) {
    if (slices.count() <= 0) return kRuns - 1;
    return static_cast<std::size_t>(slices.first * kReductionSlices + slices.last - 1);
  }
  ShareCost share(const HeldSlices& held) const;
  const ShareCost& without_experts(const SliceRange& slices) const { return of_slices[run(slices)]; }
  const HeldExpertsCost& experts(const SliceRange& slices) const { return of_experts[run(slices)]; }

  int layers() const { return static_cast<int>(kind_of.size()); }
  const BlockKind& kind(int layer) const { return kinds[kind_of[static_cast<std::size_t>(layer)]]; }
  BlockCounts counts(int first_layer, int last_layer) const;
  BlockCounts counts(const StageAssignment& work) const { return counts(work.first_layer, work.last_layer); }
  std::size_t run_index(const BlockCounts& blocks) const;  // in counts_of_runs, where it must be
  bool equal_blocks() const { return kinds.size() == 1 && before.back().shared == 0; }
  std::uint64_t weight_bytes(const BlockCounts& blocks) const { return weight_bytes(*this, blocks); }
  std::uint64_t weight_bytes(const ShareCost& own, const BlockCounts& blocks) const;
};

/// Errors: those of validate(); kInvalidArgument for a cache type that cannot hold a head's elements.
Result<ModelCost> model_cost(const ModelConfig& config, DType kv_type);

/// What a request does with its tokens: reads and continues them, encodes them and nothing else, or encodes them and
/// writes another text that attends to them.
enum class RequestKind : std::uint8_t { kContinued, kEncoded, kAnswered };
RequestKind request_kind(const ModelConfig& config);

/// What runs at once: the numbers that scale a ModelCost.
struct Load {
  std::uint64_t context = 0;    // positions that each sequence may reach: memory; half of it is what a step looks at
  std::uint64_t sequences = 1;  // decoded together: one read of the weights serves all
  std::uint64_t cached = 0;     // whose context has memory; 0: all of them
  std::uint64_t prompt = 1;     // tokens before the first answer, or of a text that is encoded
  std::uint64_t chunk = 512;    // of them in one step; texts are encoded whole
  RequestKind requests = RequestKind::kContinued;

  std::uint64_t cached_positions() const { return context * (cached == 0 ? sequences : cached); }
};

/// What a node reaches with weights of one type. From its measured MatmulRate, else the roofline of its memory and
/// arithmetic (https://doi.org/10.1145/1498765.1498785; int8 for quantised weights where the node has it, else fp32)
/// times the share of it that matmuls are assumed to reach:
inline constexpr double kAssumedMemoryShare = 0.8;
inline constexpr double kAssumedArithmeticShare = 0.5;
struct NodeRates {
  double weight_bytes_per_s = 0.0;  // of one row
  double memory_bytes_per_s = 0.0;  // of what is only moved
  double flops_per_s = 0.0;         // of many rows
  double kv_bytes_per_s = 0.0;      // attention of one head over its own keys and values, in the cache's type
  double attention_flops_per_s = 0.0;
  double dispatch_s = 0.0;  // of each kernel beside its work
  double wake_s = 0.0;      // of the first one of a step
  bool measured = false;    // matmuls of this type were
  bool known() const { return weight_bytes_per_s > 0.0 && flops_per_s > 0.0 && memory_bytes_per_s > 0.0; }
};
/// `weight_bytes` are those of the whole model: a model of which each node's part, however it is divided, is found in
/// caches is read as fast as kCachedWeights were; from there to kUncachedWeights the rate falls with the logarithm.
inline constexpr double kUncachedWeights = 8 * kCachedWeights;
/// Attention's rate is the measured one of the cache's type; where only that of halves is known, others are assumed to
/// pass as many positions per second.
NodeRates node_rates(const NodeDescriptor& node, DType weight_type, double weight_bytes = kUncachedWeights,
                     DType kv_type = DType::kF16);

/// The name of attention over a cache of this type among the MatmulRates.
std::string_view attention_rate(DType kv_type);

enum class StepKind : std::uint8_t { kContinues, kEncodes };

/// One step of a stage: `rows` positions of `sequences` sequences. Rows that continue a text look back on `past`; rows
/// that are encoded see the whole `text`.
struct StepShape {
  double rows = 1.0;
  double past = 0.0;  // positions, at the mean
  double sequences = 1.0;
  double logit_rows = 1.0;  // rows that the head computes
  StepKind kind = StepKind::kContinues;
  double text = 0.0;       // positions of each sequence's encoded text
  double encodings = 0.0;  // of a step that continues: the part of its texts' encoding that it is charged with
};
/// What balance is judged by. Every sequence one token, each halfway through its context; where that text attends to an
/// encoded one, with a token's part of the encoding, as if both were of one length. Where texts are encoded and nothing
/// else: one of each sequence.
StepShape decode_shape(const Load& load);
/// One request alone: between two of its tokens nothing is encoded.
StepShape token_shape(const Load& load);
/// The chunk of one sequence's prompt that begins at position `begin` < load.prompt, or its text, encoded.
StepShape prefill_shape(const Load& load, std::uint64_t begin);
/// The steps of one request up to its first token, or of its text, in order.
std::vector<StepShape> prompt_shapes(const Load& load);

/// Times that a block hands work to the threads: Q K V, attention, its output, the MLP's two halves; to attend to an
/// encoded text as well: Q, attention, its output.
inline constexpr double kDispatchesOfBlock = 5.0;
inline constexpr double kDispatchesOfEncoded = 3.0;

/// Rows that a matmul computes while it reads its weights; for the others it finds them in a cache.
inline constexpr double kRowsWhileReading = 4.0;

/// Seconds that a node needs for a part of one step: matmuls (reading the weights once and computing the first rows,
/// of which neither hides all of the other: the root of the sum of squares; then the other rows), attention (the larger
/// of reading keys and values and computing), what is moved between them, and handing all of it to the threads. Unknown
/// rates give infinity. A layer with a window sees no more than that; an encoder's works in steps that encode alone,
/// and one that attends to what it gave only keeps keys and values in these.
double block_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates, const BlockKind& kind = {});
double blocks_s(const ModelCost& model, const ShareCost& cost, const BlockCounts& blocks, const StepShape& step,
                const NodeRates& rates);
/// The part of block_s() that is of experts, in a block of that kind.
double experts_s(const ExpertCost& experts, double moved_bytes, const StepShape& step, const NodeRates& rates,
                 const BlockKind& kind = {});
double embedding_s(const StepShape& step, const NodeRates& rates);
double head_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates);
double share_s(const ModelCost& cost, const StageAssignment& work, const StepShape& step, const NodeRates& rates);

/// Bytes on the node that holds a share. `kv` is of all sequences at full context.
struct ShareBytes {
  std::uint64_t weights = 0;
  std::uint64_t kv = 0;
  std::uint64_t activations = 0;  // of the largest step
  std::uint64_t total() const { return weights + kv + activations; }
};
ShareBytes share_bytes(const ModelCost& cost, const StageAssignment& work, const Load& load);

}  // namespace butterfly
