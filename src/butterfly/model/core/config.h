// What a model is, as plain data: dimensions and the choices that make a Block. No weights, no file format.
// Everything that differs between families of models is a field here. Thread-safe: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

inline constexpr int kLayersMax = 1 << 14;  // validate() refuses more

enum class NormKind : std::uint8_t { kRms, kLayer };
/// kBefore: x + f(norm(x)). kAfter: norm(x + f(x)), as in https://arxiv.org/abs/1706.03762, and no norm before the
/// head. kOutput: x + norm(f(x)). kBoth: x + norm(f(norm(x))).
enum class NormPlace : std::uint8_t { kBefore, kAfter, kOutput, kBoth };
/// RMS norm of queries and keys before they are rotated: of each head, or of all heads of a token as one row.
enum class QkNorm : std::uint8_t { kNone, kHead, kWidth };
enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu };
/// kGated: down(act(gate(x)) * up(x)). kPlain: down(act(up(x))).
enum class MlpKind : std::uint8_t { kGated, kPlain };
/// kAlibi: scores fall with the distance, by a slope for each head (https://arxiv.org/abs/2108.12409). kNone: nothing
/// but RelativeConfig, where the model has one.
enum class PositionKind : std::uint8_t { kRope, kLearned, kAlibi, kNone };
/// What the last stage gives for a row: logits[vocab], or the row itself after the last norm, [model_dim].
enum class OutputKind : std::uint8_t { kLogits, kHidden };
/// Which elements of a head rotate together: neighbours (2i, 2i+1), or (i, i + rope_dim/2).
enum class RopePairs : std::uint8_t { kAdjacent, kHalves };

/// https://arxiv.org/abs/2309.00071: pairs that turn more often than beta_fast in the original context are kept, those
/// that turn less often than beta_slow are stretched by `factor`, between them the frequency is interpolated.
struct YarnScaling {
  float factor = 1.0f;
  int original_context = 0;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  bool truncate = true;  // borders between pairs are rounded outwards
};

/// https://arxiv.org/abs/2104.09864; scaling: linear divides positions by factor, llama3 rescales low frequencies.
struct RopeConfig {
  enum class Scaling : std::uint8_t { kNone, kLinear, kLlama3 };
  float base = 10000.0f;
  int dim = 0;  // rotated elements of each head, even, at most head_dim; the rest pass through
  RopePairs pairs = RopePairs::kAdjacent;
  Scaling scaling = Scaling::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;       // llama3 only
  float high_freq_factor = 4.0f;      // llama3 only
  int original_context = 8192;        // llama3 only, tokens
  std::vector<float> factors;         // per pair (dim/2), divides the frequency; empty: all 1 (GGUF rope_freqs.weight)
  float magnitude = 1.0f;             // of the rotated elements (yarn, longrope)
  std::optional<YarnScaling> yarn{};  // what made `factors`, for files that say so; arithmetic asks the factors
};

/// Multi-head latent attention (https://arxiv.org/abs/2405.04434): all heads read one cached row per token, the latent
/// from which each head's keys and values come and a key that is rotated. The last rope.dim elements of a head of
/// queries are rotated; kv_heads is 1.
struct LatentConfig {
  int dim = 0;             // of the latent; 0: attention is of another kind
  int query_rank = 0;      // queries come from a vector this long; 0: from the block's input
  int value_dim = 0;       // of each head
  float norm_epsilon = 0;  // of the norms of the latent and of that vector; 0: as in the model's other norms
};

/// A mixture of experts (https://arxiv.org/abs/1701.06538): layers in which each token goes through a few of many MLPs
/// of the model's kind and activation, and the results are added up by weight.
struct MoeConfig {
  /// What the experts of a token are weighed by: softmax over all experts, softmax over the chosen ones alone, or
  /// sigmoid of each.
  enum class Scores : std::uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };
  /// What groups of experts are compared by.
  enum class GroupScore : std::uint8_t { kLargest, kTwoLargest };
  int experts = 0;            // of each layer that has them; 0: all layers are dense
  int experts_used = 0;       // by each token
  int ff_dim = 0;             // of each expert
  std::vector<int> layers{};  // per layer: 1 has experts, 0 is dense; empty: all have
  Scores scores = Scores::kSoftmax;
  bool choice_bias = false;  // a bias that counts in choosing experts, not in weighing them
  int groups = 1;            // of experts, consecutive and equal
  int groups_used = 1;       // experts are chosen from the groups of the highest score
  GroupScore group_score = GroupScore::kLargest;
  bool renormalise = false;  // weights are divided by their sum plus the epsilon
  float renormalise_epsilon = 0.0f;
  float weight_scale = 1.0f;  // weights are multiplied by it, at last
  bool router_bias = false;
  bool expert_bias = false;
  int shared_ff_dim = 0;      // of an expert that every token goes through with weight 1; 0: none
  bool shared_gate = false;   // its weight is a sigmoid
  float swiglu_limit = 0.0f;  // 0: the MLP's activation, else min(gate, limit) * sigmoid(1.702 * min(gate, limit)) *
                              // (clamp(up, +-limit) + 1)

  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

/// A learned bias of the scores, for each head and bucket of distances (https://arxiv.org/abs/1910.10683, section 2.1):
/// one bucket for each of the short distances, then buckets that widen with the logarithm up to `distance`, from where
/// the last one holds. Encoder layers use one half of the buckets for each direction.
struct RelativeConfig {
  int buckets = 0;  // 0: the model has no such bias
  int distance = 0;
  bool shared = false;  // all layers of the encoder have one table, all of the decoder another

  friend bool operator==(const RelativeConfig&, const RelativeConfig&) = default;
};

/// What a layer does about positions.
inline constexpr int kNoRope = -1;
inline constexpr int kMainRope = 0;   // ModelConfig::rope
inline constexpr int kLocalRope = 1;  // ModelConfig::local_rope

struct ModelConfig {
  std::string architecture = "llama";  // GGUF's name of the family: names the file mapping, never the arithmetic
  std::string name;
  int layers = 0;
  /// Of `layers`, those at the front that read a whole text at once, each position all others: an encoder's. == layers:
  /// an encoder alone. Between 0 and layers: the layers behind them continue another text, and each of them also
  /// attends to what the encoder made of the first (https://arxiv.org/abs/1706.03762).
  int encoder_layers = 0;
  int model_dim = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // query, key and value elements per head; heads * head_dim need not be model_dim
  int ff_dim = 0;
  int vocab = 0;
  int context = 0;  // tokens; positions are [0, context)
  NormKind norm = NormKind::kRms;
  NormPlace norm_place = NormPlace::kBefore;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::kSilu;
  MlpKind mlp = MlpKind::kGated;
  PositionKind position = PositionKind::kRope;
  RopeConfig rope;
  RopeConfig local_rope;     // of the layers that `ropes` names
  std::vector<int> ropes;    // per layer: kNoRope, kMainRope, kLocalRope; empty: all kMainRope
  std::vector<int> windows;  // per layer: keys that a query sees, its own included; 0: all; empty: all 0. Encoder
                             // layers: those at a distance of up to a half of it
  RelativeConfig relative;
  QkNorm qk_norm = QkNorm::kNone;
  float attention_scale = 0.0f;  // of the scores; 0: 1 / sqrt(head_dim)
  float attention_cap = 0.0f;    // scores become cap * tanh(score / cap); 0: none
  float logit_cap = 0.0f;        // logits likewise
  bool attention_sinks = false;  // a learned score for each query head, of a key without a value
  LatentConfig latent;
  float alibi_max_bias = 8.0f;   // kAlibi: slopes are powers of 2^(-this / heads)
  bool parallel_block = false;   // x + attention(norm(x)) + mlp(norm(x))
  bool shared_norm = false;      // of a parallel block: the MLP reads what attention reads
  float embedding_scale = 1.0f;  // of the token's vector
  float residual_scale = 1.0f;   // of what attention and MLP add
  float logit_scale = 1.0f;      // before the cap
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool norm_bias = false;
  bool head_bias = false;
  bool tied_head = false;        // logits use the token embedding as their matrix
  int embedding_dim = 0;         // of the tables of tokens and positions, projected to model_dim; 0: model_dim
  int token_types = 0;           // rows of a table of which the first is added to every token's vector
  bool embedding_norm = false;   // of the sum of the tables' vectors
  bool skip_first_norm = false;  // the first layer's attention reads what the embedding gives
  int layer_groups = 0;          // runs of layers that share their weights; 0: each layer has its own
  bool head_transform = false;   // dense, activation and norm before the head's matrix, to the width of the tables
  bool head_transform_bias = false;
  bool head_gelu = false;  // what head_transform has is GELU, whatever the MLPs have
  OutputKind output = OutputKind::kLogits;
  int decoder_start = 0;  // encoder and decoder: the first token of what is generated
  MoeConfig moe;
  DType weight_type = DType::kF32;  // of the large matrices, for information

  int q_dim() const { return heads * head_dim; }
  bool has_latent() const { return latent.dim > 0; }
  float latent_epsilon() const { return latent.norm_epsilon > 0 ? latent.norm_epsilon : norm_epsilon; }
  /// Elements of what attention gives for one head, and for all.
  int value_dim() const { return has_latent() ? latent.value_dim : head_dim; }
  int mixed_dim() const { return heads * value_dim(); }
  /// Elements of what is cached for one token and key/value head; with a latent, a value is a part of its key.
  int cached_key_dim() const { return has_latent() ? latent.dim + rope.dim : head_dim; }
  int cached_value_dim() const { return has_latent() ? 0 : head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
  bool norms_outputs() const { return norm_place == NormPlace::kOutput || norm_place == NormPlace::kBoth; }
  int rope_of(int layer) const {
    if (position != PositionKind::kRope) return kNoRope;
    return ropes.empty() ? kMainRope : ropes[static_cast<std::size_t>(layer)];
  }
  int window_of(int layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
  bool has_local_rope() const;
  bool has_experts(int layer) const {
    return moe.experts > 0 && (moe.layers.empty() || moe.layers[static_cast<std::size_t>(layer)] != 0);
  }
  int expert_layers() const;
  bool is_encoder(int layer) const { return layer < encoder_layers; }
  /// All layers are encoders: a text goes in, and what they make of it comes out.
  bool encodes_only() const { return encoder_layers > 0 && encoder_layers == layers; }
  /// Encoder layers, and then layers that attend to what those gave.
  bool has_decoder() const { return encoder_layers > 0 && encoder_layers < layers; }
  bool has_cross_attention(int layer) const { return has_decoder() && !is_encoder(layer); }
  /// Which layer's weights a layer computes with.
  int weight_layer(int layer) const { return layer_groups == 0 ? layer : layer / (layers / layer_groups); }
  /// Whether the norm that attention reads through is there.
  bool has_attention_norm(int layer) const {
    return norm_place != NormPlace::kOutput && !(skip_first_norm && layer == 0);
  }
  int table_dim() const { return embedding_dim > 0 ? embedding_dim : model_dim; }
  int output_dim() const { return output == OutputKind::kHidden ? model_dim : vocab; }
};

/// Every dimension positive and consistent with the others. Errors: kBadData naming both disagreeing values.
Status validate(const ModelConfig& config);

/// Weights of the whole model and of its first block, in elements.
std::uint64_t parameter_count(const ModelConfig& config);
std::uint64_t block_parameter_count(const ModelConfig& config);
/// Those that one token is multiplied with: of each layer's experts the ones that it uses.
std::uint64_t active_parameter_count(const ModelConfig& config);

/// What recordings of this process say of its model (docs/formats/recording.md).
void set_facts(const ModelConfig& config);

/// Shapes known by name for benchmarks and planning, for example "llama-1.1b", in capitals or not. Errors: kNotFound
/// listing the names.
Result<ModelConfig> named_config(const std::string& name);
std::vector<std::string> named_configs();

}  // namespace butterfly
