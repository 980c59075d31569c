// Named weights as a model file stores them: dtype, shape, bytes. A WeightSource finds them by canonical name
// wherever they live: a GGUF file, a Hugging Face directory, a coordinator that sends them, or random numbers.
// Sources are immutable after creation and thread-safe; views stay valid as long as their source.
//
// Canonical names are GGUF's: token_embd.weight, position_embd.weight, output_norm.{weight,bias}, output.weight,
// rope_freqs.weight,
// output.bias, blk.N.{attn_norm,attn_q,attn_k,attn_v,attn_q_norm,attn_k_norm,attn_output,post_attention_norm,ffn_norm,
// ffn_gate,ffn_up,ffn_down,post_ffw_norm}.{weight,bias}, blk.N.attn_sinks.weight, and of latent attention
// blk.N.{attn_q_a,attn_q_a_norm,attn_q_b,attn_kv_a_mqa,attn_kv_a_norm,attn_k_b,attn_v_b}.weight: attn_k_b has for each
// head latent x not rotated elements (queries to the latent), attn_v_b values x latent. Layers with experts have
// instead of ffn_gate, ffn_up and ffn_down: ffn_gate_inp (the router), exp_probs_b.bias (of its choice),
// ffn_{gate,up,down}_exps.E of expert E, ffn_{gate,up,down}_shexp of the shared one and ffn_gate_inp_shexp, its gate, a
// vector. Encoders have token_types.weight, token_embd_norm.{weight,bias}, token_embd_proj.{weight,bias} (from the
// tables' width to the model's), output_dense and output_dense_norm.{weight,bias} (before the head's matrix) and
// blk.N.attn_rel_b.weight (buckets x heads). Decoders behind an encoder have
// blk.N.cross_attn_{norm,q,k,v,output}.{weight,bias}, and the last encoder layer before them
// blk.N.encoder_norm.weight. Layers that share weights have those of blk.(config.weight_layer). Matrices are
// [rows = outputs, cols = inputs], row-major; Q and K rows are in the order that config.rope.pairs names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/kernel/inference/reduction_slices.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/core/config.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// One stored weight, or a part of one. A vector has rows == 1.
struct WeightView {
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  ByteSpan bytes{};  // rows * row_bytes(type, cols); with a stride from the first element to the last
  std::shared_ptr<const void> owner{};  // keeps bytes alive where the source made them on the fly; may be null
  std::uint64_t stride = 0;             // bytes from one row to the next; 0: rows touch
  MatrixView matrix() const { return {type, rows, cols, bytes, stride}; }
  /// Some rows and columns of this; check_part() has passed them. Over the same bytes, or where the columns begin or
  /// end within a block of 256, over new ones of computing_type(type).
  WeightView cut(const IndexRange& of_rows, const IndexRange& of_cols) const;
};

/// Some rows and columns of a weight of a known shape.
struct WeightPart {
  std::int64_t rows = 0;  // of the whole weight
  std::int64_t cols = 0;
  IndexRange of_rows{};
  IndexRange of_cols{};  // borders lie between blocks of the type that the weight's is computed as

  static WeightPart all(std::int64_t rows, std::int64_t cols) { return {rows, cols, {0, rows}, {0, cols}}; }
  bool empty() const { return of_rows.size() <= 0 || of_cols.size() <= 0; }
  friend bool operator==(const WeightPart&, const WeightPart&) = default;
};

struct WeightInfo {
  std::string name{};
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint64_t bytes = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// Every weight, in a fixed order.
  virtual std::vector<WeightInfo> list() const = 0;

  /// Errors: kNotFound naming the weight and the source.
  virtual Result<WeightView> find(const std::string& name) const = 0;

  /// That part of the weight alone; what is not in it is neither made nor moved. Errors: those of find_checked and
  /// check_part.
  virtual Result<WeightView> find_part(const std::string& name, const WeightPart& part) const;

  /// That part of a matrix as nodes compute with it, where the source has it so already; nothing where it is to be
  /// packed from what find_part() gives.
  virtual std::optional<PackedMatrix> find_packed(const std::string& name, const WeightPart& part) const;

  /// Tells what was packed of it; `matrix` lives as long as what is loaded.
  virtual void was_packed(const std::string& name, const WeightPart& part, const PackedMatrix& matrix) const;

  virtual bool contains(const std::string& name) const = 0;

  /// Where it comes from, for messages.
  virtual std::string description() const = 0;

  /// What the source has behind `view` is wanted soon: the operating system may begin to read it.
  virtual void read_behind(const WeightView& view) const;

  /// The pages of `view` will not be read again soon; the operating system may drop them.
  virtual void release(const WeightView& view) const;
};

/// Expected names and shapes (type is config.weight_type for matrices, kF32 for vectors) of blocks [first, last) and,
/// where asked for, the embedding and the head. The head of a tied model is token_embd.weight.
struct WeightRange {
  int first_layer = 0;
  int last_layer = 0;
  bool embedding = false;
  bool head = false;
};
std::vector<WeightInfo> expected_weights(const ModelConfig& config, const WeightRange& range);

/// A weight of which a node has a part.
struct ExpectedPart {
  WeightInfo whole{};
  WeightPart part{};  // not empty
};

/// Which parts of the weights of `range` the holder of `slices` computes with, in the order of expected_weights;
/// weights of which it needs nothing are left out.
std::vector<ExpectedPart> expected_parts(const ModelConfig& config, const WeightRange& range, const HeldSlices& slices);

/// Whether `part` can be cut out of `stored`, of which bytes are not looked at. Errors: kBadData naming both shapes;
/// kInvalidArgument naming the rows or columns that there are and those that were asked for.
Status check_part(const WeightSource& source, const WeightInfo& stored, const WeightPart& part);

/// The weight, checked against `expected`'s shape. Errors: kNotFound, kBadData naming both shapes.
Result<WeightView> find_checked(const WeightSource& source, const WeightInfo& expected);

}  // namespace butterfly
