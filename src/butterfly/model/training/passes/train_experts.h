// The MLP of a layer with experts in training: rows are gathered by expert, go through its MLP, and are added up by
// weight. An expert without rows has zero gradients. Immutable after make_experts().
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/passes/train_activation.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/passes/train_projection.h"
#include "butterfly/model/training/passes/train_router.h"

namespace butterfly {

struct TrainExperts {
  Projection router{};
  std::int64_t choice_bias = kNoParameter;
  std::vector<Projection> in, down;                      // by expert: gate and up, and what follows the activation
  Projection shared_in{}, shared_down{}, shared_gate{};  // without matmuls where there is none
};

/// Of the block whose weights' names begin with `prefix`. Errors: kNotFound.
Result<TrainExperts> make_experts(const ModelConfig& config, const Fusion& fusion, const ParameterSet& parameters,
                                  const std::string& prefix);

/// Pairs are a row and one of its experts, behind one another by expert, each expert's filled up to whole kPairAlign.
struct ExpertActivations {
  float* logits = nullptr;        // [rows, experts]
  int* experts = nullptr;         // [rows, used]
  float* weights = nullptr;       // [rows, used]
  int* pair_of = nullptr;         // [rows, used]
  int* row_of = nullptr;          // [pairs]; -1: fills up
  std::int64_t* begin = nullptr;  // [2 experts + 1]: each expert's first pair; behind them scratch
  void* gathered = nullptr;       // operand [pairs, model_dim]
  ActivationArgs mlp{};           // of pairs; its rows are begin[experts]
  float* out = nullptr;           // [pairs, model_dim]
  ActivationArgs shared{};        // of rows
  float* shared_out = nullptr;    // [rows, model_dim]; with a gate
  float* gate_logits = nullptr;   // [rows]; with a gate
};

/// Scratch of the backward pass.
struct ExpertGradients {
  void* dout = nullptr;             // operand [pairs, model_dim]
  float* dhidden = nullptr;         // [pairs, ff_dim]
  void* din = nullptr;              // operand, as wide as mlp.in
  float* dgathered = nullptr;       // [pairs, model_dim]
  float* dweights = nullptr;        // [rows, used]
  float* dlogits = nullptr;         // [rows, experts]
  void* dlogits_operand = nullptr;  // the same as matmuls take it
  float* dshared_hidden = nullptr;  // [rows, shared_ff_dim]
  void* dshared_in = nullptr;       // operand, as wide as shared.in
  void* dshared_out = nullptr;      // operand [rows, model_dim]; with a gate
  float* dgate = nullptr;           // [rows]; with a gate
  void* dgate_operand = nullptr;    // the same as matmuls take it
};

/// y [rows, model_dim]: written, or added to. With a tally, the layer's part of it is written. Errors: those of Gemm,
/// here and below.
struct ExpertPass {
  const void* x = nullptr;  // operand [rows, model_dim]
  float* y = nullptr;
  Accumulate accumulate = Accumulate::kNo;
  std::int64_t* tokens = nullptr;   // [experts]; null: nothing is counted
  double* probabilities = nullptr;  // [experts]
};
Status forward_experts(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                       const ExpertPass& pass);

/// Fills `gathered` and the activations' outputs again.
void derive_experts(const TrainContext& context, const ExpertActivations& a, const void* x);

struct ExpertBackwardArgs {
  const void* x = nullptr;
  const float* dy = nullptr;         // [rows, model_dim]
  const void* dy_operand = nullptr;  // the same as matmuls take it
  const float* balance = nullptr;    // balance_slopes(); null: none
  float* dx = nullptr;               // [rows, model_dim], written
};
Status backward_experts(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                        const ExpertGradients& gradients, const ExpertBackwardArgs& args);

}  // namespace butterfly
