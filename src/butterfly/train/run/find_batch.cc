#include "butterfly/train/run/find_batch.h"

#include "butterfly/base/units.h"
#include "butterfly/trace/trace.h"
#include "butterfly/train/data/permutation.h"

namespace butterfly {
namespace {

/// Weights, gradients and moments, whatever the micro-batch.
Result<std::uint64_t> state_bytes(const ModelConfig& shape, const FindBatchOptions& options) {
  BF_ASSIGN_OR_RETURN(const ParameterSet parameters,
                      ParameterSet::create(shape, {.weights = Residency::kSparse, .gradients = Residency::kSparse}));
  const std::uint64_t flat = static_cast<std::uint64_t>(parameters.padded_size()) * sizeof(float);
  const std::uint64_t copy = options.transformer.precision == Precision::kBfloat16 ? flat / 2 : 0;
  return (2 + options.moment_arrays) * flat + copy;
}

/// Tokens per second of a forward and a backward pass, once everything is planned and touched.
Result<double> speed(const ModelConfig& shape, const FindBatchOptions& options, int micro_batch) {
  TransformerOptions with = options.transformer;
  with.micro_batch = micro_batch;
  BF_ASSIGN_OR_RETURN(const auto transformer, TrainableTransformer::create(shape, with));
  transformer->initialize(1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(with.seq));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = TokenId(static_cast<std::int32_t>(mixed(1, i) % static_cast<std::uint64_t>(shape.vocab)));
  }
  double tokens_per_s = 0.0;
  for (int time = 0; time < 2; ++time) {
    const std::uint64_t begin = trace::now_ns();
    BF_TRY(transformer->forward(tokens, tokens));
    BF_TRY(transformer->backward(1.0f / static_cast<float>(tokens.size()), [](ParameterRange) {}));
    tokens_per_s = static_cast<double>(tokens.size()) / (static_cast<double>(trace::now_ns() - begin) * 1e-9);
  }
  return tokens_per_s;
}

}  // namespace

Result<std::vector<BatchTrial>> find_batch(const ModelConfig& shape, const FindBatchOptions& options,
                                           const std::function<void(const BatchTrial&)>& tried) {
  BF_ASSIGN_OR_RETURN(const std::uint64_t state, state_bytes(shape, options));
  TransformerOptions transformer = options.transformer;
  std::vector<BatchTrial> trials;
  for (int micro_batch = 1; micro_batch <= options.micro_batch_max; micro_batch *= 2) {
    transformer.micro_batch = micro_batch;
    BF_ASSIGN_OR_RETURN(const std::uint64_t activations, planned_activation_bytes(shape, transformer));
    BatchTrial trial{.micro_batch = micro_batch, .predicted_bytes = state + activations};
    if (trial.predicted_bytes <= options.memory_bytes) {
      const auto measured = speed(shape, options, micro_batch);
      if (!measured && measured.error().code != ErrorCode::kNoMemory) return tl::unexpected(measured.error());
      trial.fits = measured.has_value();
      trial.tokens_per_s = measured.value_or(0.0);
    }
    trials.push_back(trial);
    if (tried) tried(trial);
    if (!trial.fits) break;
  }
  if (!trials.front().fits) {
    return make_error(ErrorCode::kNoMemory, "a micro-batch of 1 needs {}, {} are free",
                      format_bytes(trials.front().predicted_bytes), format_bytes(options.memory_bytes));
  }
  return trials;
}

double training_flops_per_token(const ModelConfig& shape, int seq) {
  return 3.0 * forward_flops_per_token(shape, seq);
}

}  // namespace butterfly
