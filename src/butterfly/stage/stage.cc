#include "butterfly/stage/stage.h"

#include "butterfly/kernel/dispatch.h"
#include "butterfly/model/rotary.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

DType kv_type_for(const ModelConfig& config) {
  return config.weight_type == DType::kF32 ? DType::kF32 : DType::kF16;
}

Stage::Stage(const ModelConfig& config, const StageAssignment& assignment, const StageOptions& options)
    : config_(config),
      assignment_(assignment),
      counters_(options.counters),
      emulation_(options.emulated_speed),
      wire_type_(options.wire_type),
      kernels_(&kernels_for(options.isa)),
      team_(options.threads),
      pool_(Pool::create()),
      step_arena_(pool_),
      block_arena_(pool_),
      cache_({.layers = assignment.last_layer - assignment.first_layer,
              .kv_heads = config.kv_heads,
              .head_dim = config.head_dim,
              .type = options.kv_type.value_or(kv_type_for(config)),
              .bytes_max = options.kv_bytes_max}) {
  if (config.position == PositionKind::kRope) frequencies_ = rotary_frequencies(config.rope);
}

Result<std::unique_ptr<Stage>> Stage::load(const ModelConfig& config, const StageAssignment& assignment,
                                           const WeightSourceFinder& find_source, const StageOptions& options,
                                           StageParts& kept, const std::stop_token& stop) {
  std::unique_ptr<Stage> stage(new Stage(config, assignment, options));
  BF_TRY(kept.complete(config, assignment, find_source, stage->team_, stop));
  if (assignment.embedding) stage->embedding_ = kept.embedding();
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    stage->blocks_.push_back(kept.block(layer));
  }
  if (assignment.head) stage->head_ = kept.head();
  stage->weight_bytes_ = kept.bytes(assignment);
  return stage;
}

Result<std::unique_ptr<Stage>> Stage::load(const ModelConfig& config, const StageAssignment& assignment,
                                           std::shared_ptr<const WeightSource> source, const StageOptions& options) {
  StageParts parts;
  return load(
      config, assignment, [&]() -> Result<std::shared_ptr<const WeightSource>> { return source; }, options, parts);
}

Result<Tensor> Stage::embed(const Step& step) {
  const std::int64_t rows = step.batch.rows();
  if (step.tensor.rank() != 1 || step.tensor.dtype() != DType::kI32 || step.tensor.dim(0) != rows) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came with other than {} tokens", rows, rows);
  }
  BF_ASSIGN_OR_RETURN(Tensor x, Tensor::allocate(*pool_, DType::kF32, {rows, config_.model_dim}));
  const auto values = step.tensor.view().values<std::int32_t>();
  const std::vector<TokenId> tokens(values.begin(), values.end());
  BF_TRY(embedding_->forward(step.batch, tokens, x.mutable_view().values()));
  return x;
}

Result<Tensor> Stage::take_activations(Step& step) {
  const std::int64_t rows = step.batch.rows();
  if (step.tensor.rank() != 2 || step.tensor.dtype() != DType::kF32 || step.tensor.dim(0) != rows ||
      step.tensor.dim(1) != config_.model_dim) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came without its {} x {} activations", rows, rows,
                      config_.model_dim);
  }
  return std::move(step.tensor);
}

Status Stage::forward(Step& step) {
  for (const SequenceId sequence : step.release) cache_.release(sequence);
  if (step.batch.runs.empty()) return {};
  const std::uint64_t begin_ns = trace::now_ns();
  emulation_.begin();
  Status status = compute(step);
  emulation_.catch_up();
  if (counters_ != nullptr) {
    counters_->steps.fetch_add(1, std::memory_order_relaxed);
    counters_->busy_ns.fetch_add(trace::now_ns() - begin_ns, std::memory_order_relaxed);
  }
  return status;
}

Status Stage::compute(Step& step) {
  const trace::Scope scope(trace::Zone::kStageCompute, static_cast<std::uint32_t>(step.batch.rows()));
  for (const SequenceRun& run : step.batch.runs) BF_TRY(cache_.reserve(run.sequence, run.position + run.rows));
  BF_ASSIGN_OR_RETURN(Tensor x, embedding_ ? embed(step) : take_activations(step));

  const Compute compute{kernels_, &team_, &block_arena_};
  step_arena_.reset();
  BF_ASSIGN_OR_RETURN(const RotaryRows rotary, rotary_rows({kernels_, &team_, &step_arena_}, frequencies_, step.batch));
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    block_arena_.reset();
    BF_TRY(blocks_[layer]->forward(compute, step.batch, rotary, static_cast<int>(layer), cache_,
                                   x.mutable_view().values().data()));
  }
  if (!head_) {
    step.tensor = std::move(x);
    return {};
  }
  BF_ASSIGN_OR_RETURN(Tensor logits, Tensor::allocate(*pool_, DType::kF32, {step.batch.logit_rows(), config_.vocab}));
  if (step.batch.logit_rows() > 0) {
    block_arena_.reset();
    BF_TRY(head_->forward(compute, step.batch, x.view().values().data(), logits.mutable_view().values()));
  }
  step.tensor = std::move(logits);
  return {};
}

PayloadAllocator Stage::payload_allocator() const {
  return [pool = pool_](std::uint64_t bytes) -> Result<Payload> {
    BF_ASSIGN_OR_RETURN(Storage storage, pool->allocate(bytes));
    return Payload{std::move(storage.owner), storage.bytes};
  };
}

std::uint64_t Stage::memory_bytes() const {
  return weight_bytes() + cache_.bytes_reserved() + step_arena_.reserved_bytes() + block_arena_.reserved_bytes();
}

}  // namespace butterfly
