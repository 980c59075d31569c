// A whole model that learns: forward to a loss and backward to gradients, over one micro-batch at a time. All memory is
// planned when it is made: no allocation after the first step. The same blocks as inference computes, in training's
// arithmetic (fp32 or bf16 matmuls), whose bits are its own. One call at a time; it uses its thread team.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/passes/train_router.h"
#include "butterfly/model/training/passes/transformer_options.h"
#include "butterfly/model/training/train_support.h"

namespace butterfly {

/// Called during backward() when the gradients of `range` will not change any more; ranges come from the end of the
/// flat array to its beginning and cover all of it.
using GradientsReady = std::function<void(ParameterRange range)>;

/// For who keeps a part of it: a whole model may be more than there is memory for.
using ParameterMade = std::function<void(const Parameter& parameter)>;

/// What the routers of a mixture of experts did in one forward pass; a function of the micro-batch and the weights.
struct RouterReport {
  double balance_loss = 0.0;  // over the whole model that of transformers' load_balancing_loss_func; 0 without experts
  std::span<const std::int64_t> tokens{};  // by layer, then by expert: rows that went through it
};

struct TrainingMemory {
  std::uint64_t parameter_bytes = 0, gradient_bytes = 0, activation_bytes = 0, scratch_bytes = 0;
};

/// What a transformer with these options takes for activations and scratch, nothing of which is allocated. Errors:
/// those of TrainableTransformer::create().
Result<std::uint64_t> planned_activation_bytes(const ModelConfig& config, const TransformerOptions& options);

/// What is where gradients will go. Zeros are not written again: their pages may take no memory yet.
enum class OldGradients : std::uint8_t { kAny, kZero };

enum class Pass : std::uint8_t { kForward, kBackward };

/// What keeps the weights that passes compute with, unit by unit (TrainableTransformer::units()). One call at a
/// time.
class WeightResidency {
 public:
  virtual ~WeightResidency() = default;
  /// Returns when the weights of the unit are there: whether they may be others than at its last release. A forward
  /// pass asks for units 0, 1, ... and releases 0 last; a backward pass asks for 0, then from the last one down to 1.
  virtual Result<bool> acquire(int unit, Pass pass) = 0;
  /// The pass does not read them any more.
  virtual void release(int unit) = 0;
};

/// What is needed and has its gradients together: 0 is embedding, last norm and head; the others are the layers.
struct ParameterUnit {
  std::vector<ParameterRange> ranges{};  // ascending, gaps included
};

/// The passes of a part of a model (ModelPart), between which rows travel: a stage of a pipeline. Its activations are
/// kept at places, one micro-batch at each. Gradients go to `fresh` as TrainableTransformer::clear_gradients() has it,
/// this part's alone; nothing: they are added to parameters().gradients(). A part has no WeightResidency.
class PartPasses {
 public:
  virtual ~PartPasses() = default;

  /// From now on. What was kept is gone. Errors: kNoMemory.
  virtual Status set_part(const ModelPart& part) = 0;

  /// [rows, model_dim] each: where forward_part() finds the residual stream before its first layer; where it, or
  /// embed(), leaves the stream for the next part; where backward_part() finds the stream's gradient behind its last
  /// layer, and leaves that before its first, which embed_backward() reads, too.
  virtual std::span<float> stream_in(int place) = 0;
  virtual std::span<float> stream_out() = 0;
  virtual std::span<float> stream_gradient() = 0;
  /// What the routers of all layers of the micro-batch at `place` did: forward_part() adds its layers, and
  /// backward_part() needs all. Travels with the streams.
  virtual RouterTally& router_tally(int place) = 0;

  /// Errors: as TrainableTransformer::forward().
  virtual Status embed(std::span<const TokenId> tokens) = 0;
  /// The sum of the losses, where the part has the head; else 0, and `targets` are not looked at.
  virtual Result<double> forward_part(int place, std::span<const TokenId> targets) = 0;

  struct FreshGradients {
    std::span<float> layers{}, head{};
  };
  /// With the head, of the micro-batch of the last forward_part().
  virtual Status backward_part(int place, float scale, const FreshGradients& fresh) = 0;
  /// Where the embedding is the head, too, `fresh` has the head's gradients of this micro-batch already.
  virtual Status embed_backward(std::span<const TokenId> tokens, std::span<float> fresh) = 0;
};

class TrainableTransformer {
 public:
  /// Errors: kInvalidArgument (seq beyond the context, batch below 1), kUnsupported naming what of the configuration
  /// has no backward, kNoMemory naming how much was missing.
  static Result<std::unique_ptr<TrainableTransformer>> create(const ModelConfig& config,
                                                              const TransformerOptions& options);
  virtual ~TrainableTransformer() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const TransformerOptions& options() const = 0;
  virtual ParameterSet& parameters() = 0;
  /// Its threads, for what is done to its parameters between its calls: a second team would take their cores.
  virtual ThreadTeam& team() = 0;
  virtual TrainingMemory memory() const = 0;

  /// Normal(0, 0.02), residual matmuls scaled by 1/sqrt(2 layers) as in GPT-2, norms 1, biases 0; a counter-based
  /// generator keyed by (seed, parameter, element), so that nothing else shows in the values.
  /// `made`, where there is one, is told of each parameter when it has its values.
  virtual void initialize(std::uint64_t seed, const ParameterMade& made) = 0;
  void initialize(std::uint64_t seed) { initialize(seed, {}); }

  /// Room for passes of at most this number of sequences; TransformerOptions::micro_batch without a call. What was kept
  /// is gone. Errors: kNoMemory.
  virtual Status make_room(int sequences) = 0;

  /// tokens and targets: [sequences, seq], as many as there is room for at most; a target of -1 is not counted. Returns
  /// the sum of the losses (nats) over the counted targets; keeps what backward() needs. Errors: kInvalidArgument for
  /// an id outside the vocabulary.
  virtual Result<double> forward(std::span<const TokenId> tokens, std::span<const TokenId> targets) = 0;

  /// From the next backward() on, gradients go to `into`, which is as long as parameters().gradients(): these, until it
  /// is called. They count as zero there, for the next backward() and for nobody before it: those that a matmul writes
  /// as a whole keep their old values until then, what is of no parameter keeps them.
  virtual void clear_gradients(std::span<float> into, OldGradients old) = 0;
  void clear_gradients(std::span<float> into) { clear_gradients(into, OldGradients::kAny); }

  /// Adds the gradient of `scale` * (sum of losses of the last forward).
  virtual Status backward(float scale, const GradientsReady& ready) = 0;

  /// The loss alone, nothing kept but the router's report. Same arguments and errors as forward().
  virtual Result<double> evaluate(std::span<const TokenId> tokens, std::span<const TokenId> targets) = 0;

  /// After weights() changed (bf16 keeps a copy of them).
  virtual void weights_changed() = 0;

  /// Together they are the flat arrays.
  virtual std::vector<ParameterUnit> units() const = 0;
  /// From now on passes ask for the weights of each unit before they use them. Borrowed; null: all are there.
  virtual void set_residency(WeightResidency* residency) = 0;
  /// A forward pass and a backward pass that ask for weights and tell `ready` as others do, but compute nothing: for a
  /// rank that others need although it has no micro-batch. Without `ready`, the forward pass alone.
  virtual Status idle(const GradientsReady& ready) = 0;

  /// Its passes part by part. Without a call of set_part() it is TransformerOptions::part, all of the model as a rule:
  /// what else passes do here, they do with all of it.
  virtual PartPasses& part() = 0;

  virtual double forward_flops_per_token() const = 0;

  /// Of the last forward() or evaluate(); valid until the next one.
  virtual RouterReport router_report() const = 0;
};

}  // namespace butterfly
