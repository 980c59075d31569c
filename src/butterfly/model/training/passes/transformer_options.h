// How a TrainableTransformer computes and how much at once. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/model/core/parameters.h"

namespace butterfly {

/// What of a block's activations is computed again in the backward pass instead of being kept.
/// kSelective: what is cheap (norms, activations of the MLP, attention's output is kept). kBlock: all but its input.
enum class Recompute : std::uint8_t { kNone, kSelective, kBlock };
std::string_view to_string(Recompute recompute);
Result<Recompute> parse_recompute(std::string_view name);

/// Each may be switched off for ablation; results agree within rounding.
struct Fusion {
  bool qkv = true;            // one matmul for Q, K and V
  bool swiglu = true;         // one matmul for gate and up, activation and matmul in one pass
  bool attention = true;      // no [seq, seq] matrix
  bool cross_entropy = true;  // softmax, loss and gradient in one pass over the logits
  bool adamw = true;          // one pass over weight, gradient and moments
};
/// "qkv,swiglu,attention,cross_entropy,adamw", "all", "none". Errors: kInvalidArgument naming the known ones.
Result<Fusion> parse_fusion(const std::string& list);
std::string to_string(const Fusion& fusion);

/// What the load-balance loss takes together: the tokens of all layers, as transformers does, where an expert that one
/// layer overloads may make up for what another does not use; or those of each layer, of which it is the mean.
enum class BalanceScope : std::uint8_t { kModel, kLayer };

/// What of a model passes go through here, where other ranks have the rest.
struct ModelPart {
  int first_layer = 0;
  int last_layer = -1;  // behind the last one; -1: all
  bool ends = true;     // embedding, last norm and head
  int kept = 1;         // micro-batches whose activations are kept at once
};

struct TransformerOptions {
  Precision precision = Precision::kFloat32;
  Recompute recompute = Recompute::kNone;
  Fusion fusion{};
  int micro_batch = 1;  // sequences
  int seq = 0;          // tokens of each
  int threads = 1;
  Isa isa = Isa::kReference;
  ParameterMemory memory{};
  ModelPart part{};
  /// Coefficient of the load-balance loss of a mixture of experts: backward() gives the gradients of the losses plus
  /// this times the rows of the micro-batch times RouterReport::balance_loss.
  double router_aux_loss = 0.0;
  BalanceScope router_aux_loss_over = BalanceScope::kModel;
  /// Size of the logits in memory at a time. A head that needs more works in chunks of rows, all but the last of which
  /// are computed again in the backward pass: at GPT-2's vocabulary a tenth of a step's work, beyond 320 rows.
  std::int64_t logits_bytes_max = std::int64_t{64} << 20;
};

}  // namespace butterfly
