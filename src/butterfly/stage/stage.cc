#include "butterfly/stage/stage.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/kernel/rates/matmul_choice.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/stage/all_gather.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

DType kv_type_for(const ModelConfig& config) {
  return config.weight_type == DType::kF32 ? DType::kF32 : DType::kF16;
}

namespace {

/// Layers of this share that attend to an encoded text.
int cross_layers(const ModelConfig& config, const StageAssignment& assignment) {
  if (!config.has_decoder()) return 0;
  return std::max(0, assignment.last_layer - std::max(assignment.first_layer, config.encoder_layers));
}

}  // namespace

Stage::Stage(const ModelConfig& config, const StageAssignment& assignment, const StageOptions& options)
    : config_(config),
      assignment_(assignment),
      wire_type_(options.wire_type),
      kernels_(&tuned_kernels(options.isa)),
      team_(options.team ? options.team : std::make_shared<ThreadTeam>(options.threads)),
      pool_(Pool::create({.owner = trace::Owner::kActivations})),
      step_arena_(pool_),
      block_arena_(pool_),
      cache_({.layers = assignment.last_layer - assignment.first_layer + cross_layers(config, assignment),
              .cross_layers = cross_layers(config, assignment),
              .kv_heads = static_cast<int>(shard_of(config, assignment.slices).kv_heads.size()),
              .head_dim = config.cached_key_dim(),
              .value_dim = config.cached_value_dim(),
              .type = options.kv_type.value_or(kv_type_for(config)),
              .bytes_max = options.kv_bytes_max}) {
  frequencies_ = rotary_frequencies(config);
}

Result<std::unique_ptr<Stage>> Stage::load(const ModelConfig& config, const StageAssignment& assignment,
                                           const WeightSourceFinder& find_source, const StageOptions& options,
                                           StageParts& kept, const LoadOptions& loading) {
  std::unique_ptr<Stage> stage(new Stage(config, assignment, options));
  BF_TRY(kept.complete(config, assignment, find_source, *stage->team_, loading));
  if (assignment.embedding) stage->embedding_ = kept.embedding(assignment.slices);
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer) {
    stage->blocks_.push_back(kept.block(layer, assignment.slices));
  }
  if (assignment.head) stage->head_ = kept.head(assignment.slices);
  stage->weight_bytes_ = kept.bytes(assignment);
  return stage;
}

Result<std::unique_ptr<Stage>> Stage::load(const ModelConfig& config, const StageAssignment& assignment,
                                           std::shared_ptr<const WeightSource> source, const StageOptions& options,
                                           const LoadOptions& loading) {
  StageParts parts;
  const auto find = [&]() -> Result<std::shared_ptr<const WeightSource>> { return source; };
  return load(config, assignment, find, options, parts, loading);
}

namespace {

/// What a member tells the others of itself when they meet; all but the slices has to agree.
struct Introduction {
  std::int32_t first_layer = 0, last_layer = 0;
  std::int32_t embedding = 0, head = 0;
  std::int32_t kv_type = 0;
  std::int32_t first_slice = 0, last_slice = 0;
  std::int32_t first_expert_slice = 0, last_expert_slice = 0;
  HeldSlices slices() const { return {{first_slice, last_slice}, {first_expert_slice, last_expert_slice}}; }
  bool agrees(const Introduction& other) const {
    return first_layer == other.first_layer && last_layer == other.last_layer && embedding == other.embedding &&
           head == other.head && kv_type == other.kv_type;
  }
};

/// Whether the members are one group. Their ranks are the order of their slices.
Status check_group(std::span<const Introduction> members, std::size_t rank) {
  HeldSlices before = HeldSlices::none();
  for (std::size_t r = 0; r < members.size(); ++r) {
    const Introduction& member = members[r];
    if (!member.agrees(members[rank])) {
      return make_error(
          ErrorCode::kProtocol,
          "member {} of the tensor group has layers {} to {} (cache type {}), member {} has {} to {} ({})", r,
          member.first_layer, member.last_layer, member.kv_type, rank, members[rank].first_layer,
          members[rank].last_layer, members[rank].kv_type);
    }
    const HeldSlices held = member.slices();
    if (!held.follows(before) || held.empty() || held.last > kReductionSlices || held.experts.last > kReductionSlices) {
      return make_error(ErrorCode::kProtocol,
                        "member {} of the tensor group has slices {} to {} and experts' slices {} to {}, expected them "
                        "from {} and {}",
                        r, held.first, held.last, held.experts.first, held.experts.last, before.last,
                        before.experts.last);
    }
    before = held;
  }
  if (before.ends()) return {};
  return make_error(ErrorCode::kProtocol,
                    "the members of the tensor group have slices up to {} and experts' slices up to {} of {}",
                    before.last, before.experts.last, kReductionSlices);
}

}  // namespace

Status Stage::join(Exchange& exchange) {
  BF_CHECK(!group_, "a stage joins one group");
  const Introduction mine{.first_layer = assignment_.first_layer,
                          .last_layer = assignment_.last_layer,
                          .embedding = assignment_.embedding ? 1 : 0,
                          .head = assignment_.head ? 1 : 0,
                          .kv_type = static_cast<std::int32_t>(cache_.options().type),
                          .first_slice = assignment_.slices.first,
                          .last_slice = assignment_.slices.last,
                          .first_expert_slice = assignment_.slices.experts.first,
                          .last_expert_slice = assignment_.slices.experts.last};
  BF_ASSIGN_OR_RETURN(const std::vector<Introduction> members, all_gather(exchange, mine));
  BF_TRY(check_group(members, static_cast<std::size_t>(exchange.rank())));
  std::vector<HeldSlices> slices;
  for (const Introduction& member : members) slices.push_back(member.slices());
  exchange_ = &exchange;
  group_.emplace(config_, slices, exchange.rank(),
                 [this](std::span<const ByteSpan> give, std::span<const MutableByteSpan> take) {
                   return exchange_->exchange(give, take);
                 });
  return {};
}

StageTrial::StageTrial(Stage& stage, int rows_max)
    : stage_(stage),
      room_(stage.cache_.reserve(kSpare, rows_max)),
      x_(stage.allocate(DType::kF32, {rows_max, stage.config_.model_dim})) {}

Status StageTrial::block(int rows) {
  const std::size_t next = (layer_ + 1) % stage_.blocks_.size();
  // Of a decoder the more dear kind of step: what it attends to is then as long as its own text.
  const bool encodes = stage_.config_.is_encoder(stage_.assignment_.first_layer + static_cast<int>(next));
  const Batch batch{
      .runs = {{.sequence = kSpare, .position = 0, .rows = rows, .logits_from = rows, .encoder_rows = rows}},
      .kind = encodes ? BatchKind::kEncode : BatchKind::kContinue};
  stage_.step_arena_.reset();
  stage_.block_arena_.reset();
  std::ranges::fill(x_->mutable_view().values(), 1.0f);
  BF_ASSIGN_OR_RETURN(const RotaryRows rotary,
                      rotary_rows(stage_.compute_with(stage_.step_arena_), stage_.frequencies_, batch));
  layer_ = next;
  return stage_.blocks_[layer_]->forward(stage_.compute_with(stage_.block_arena_), batch, rotary,
                                         static_cast<int>(layer_), stage_.cache_, x_->mutable_view().values().data());
}

Result<std::vector<TokenId>> Stage::tokens_of(const Step& step) const {
  const std::int64_t rows = step.batch.rows();
  if (step.tensor.rank() != 1 || step.tensor.dtype() != DType::kI32 || step.tensor.dim(0) != rows) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came with other than {} tokens", rows, rows);
  }
  const auto values = step.tensor.view().values<std::int32_t>();
  std::vector<TokenId> tokens(values.begin(), values.end());
  BF_TRY(embedding_->check(step.batch, tokens));
  return tokens;
}

Status Stage::check_activations(const Step& step) const {
  const std::int64_t rows = step.batch.rows();
  if (step.tensor.rank() != 2 || step.tensor.dtype() != DType::kF32 || step.tensor.dim(0) != rows ||
      step.tensor.dim(1) != config_.model_dim) {
    return make_error(ErrorCode::kProtocol, "a step of {} rows came without its {} x {} activations", rows, rows,
                      config_.model_dim);
  }
  return {};
}

namespace {

/// Whether the model has such steps. Only then does each row see what it should.
Status check_kind(const ModelConfig& config, const Batch& batch) {
  const bool encodes = batch.kind == BatchKind::kEncode;
  if (encodes ? config.encoder_layers == 0 : config.encodes_only()) {
    return make_error(ErrorCode::kProtocol, "a step that {} came for a model of {} encoder layers and {} others",
                      encodes ? "encodes" : "continues a text", config.encoder_layers,
                      config.layers - config.encoder_layers);
  }
  for (const SequenceRun& run : batch.runs) {
    if (encodes && run.position != 0) {
      return make_error(ErrorCode::kProtocol, "a text to be encoded begins at position {}, expected 0", run.position);
    }
    const bool attends = !encodes && config.has_decoder();
    if (attends ? run.encoder_rows < 1 : run.encoder_rows != 0) {
      return make_error(ErrorCode::kProtocol, "a run attends to {} encoded positions, expected {}", run.encoder_rows,
                        attends ? "at least 1" : "none");
    }
  }
  return {};
}

/// Prompts begin a text or have rows without logits; a text that already gave a token has logits in each of its rows.
trace::Zone step_zone(const Batch& batch) {
  if (batch.kind == BatchKind::kEncode) return trace::Zone::kStepEncode;
  const auto is_prompt = [](const SequenceRun& run) { return run.logits_from > 0 || run.position == 0; };
  const auto prompts = std::ranges::count_if(batch.runs, is_prompt);
  if (prompts == 0) return trace::Zone::kStepDecode;
  return prompts == std::ssize(batch.runs) ? trace::Zone::kStepPrefill : trace::Zone::kStepMixed;
}

}  // namespace

Status Stage::forward(Step& step) {
  for (const SharedPrefix& shared : step.share) BF_TRY(cache_.share(shared.from, shared.to, shared.tokens));
  for (const SequenceId sequence : step.release) cache_.release(sequence);
  if (step.batch.runs.empty()) return {};
  BF_TRY(check_kind(config_, step.batch));
  const trace::Scope scope(step_zone(step.batch), {.number = static_cast<std::uint32_t>(step.batch.rows())});
  Status status = compute(step);
  if (pace_) pace_();
  return status;
}

Status Stage::compute(Step& step) {
  BF_ASSIGN_OR_RETURN(Tensor x, begin(step));
  Status status = run_blocks(step.batch, x);
  Result<Tensor> out = status ? finish(step.batch, std::move(x)) : tl::unexpected(status.error());
  if (!out) return leave_group_with(out.error());
  step.tensor = std::move(*out);
  return {};
}

/// Room in the cache, and the activations as far as this node has them: what can fail at one member alone.
Result<Tensor> Stage::first_activations(Step& step, std::span<const TokenId> tokens) {
  Tensor x;
  {
    const trace::Scope scope(trace::Zone::kRotary, {.number = static_cast<std::uint32_t>(step.batch.runs.size())});
    for (const SequenceRun& run : step.batch.runs) {
      BF_TRY(cache_.reserve(run.sequence, std::max(run.position + run.rows, run.encoder_rows)));
    }
    if (!embedding_ && !group_) return std::move(step.tensor);
    BF_ASSIGN_OR_RETURN(x, Tensor::allocate(*pool_, DType::kF32, {step.batch.rows(), config_.model_dim}));
  }
  if (embedding_) {
    block_arena_.reset();
    BF_TRY(embedding_->forward(compute_with(block_arena_), step.batch, tokens, x.mutable_view().values()));
  } else {
    // Members in one process are given one and the same tensor, and blocks write into theirs.
    std::ranges::copy(step.tensor.view().values<float>(), x.mutable_view().values().begin());
  }
  return x;
}

/// The activations that enter the first block, complete. What every member sees is checked before the first exchange;
/// whether all can go on is part of it.
Result<Tensor> Stage::begin(Step& step) {
  if (!assignment_.slices.whole() && !group_) {
    return make_error(ErrorCode::kProtocol, "slices {} to {} were given a step before they met the other members",
                      assignment_.slices.first, assignment_.slices.last);
  }
  std::vector<TokenId> tokens;
  if (embedding_) {
    BF_ASSIGN_OR_RETURN(tokens, tokens_of(step));
  } else {
    BF_TRY(check_activations(step));
  }
  Result<Tensor> x = first_activations(step, tokens);
  if (!group_) return x;
  block_arena_.reset();
  const Status ready = x ? Status{} : tl::unexpected(x.error());
  float* values = x ? x->mutable_view().values().data() : nullptr;
  const Result<Status> all_ready = group_->begin_step(block_arena_, ready, tokens, values);
  if (!all_ready) return leave_group_with(all_ready.error());
  BF_TRY(*all_ready);
  return x;
}

void Stage::leave_group() {
  if (!group_) return;
  broken_ = true;
  exchange_->abort();
}

tl::unexpected<Error> Stage::leave_group_with(const Error& error) {
  leave_group();
  return tl::unexpected(error);
}

Status Stage::run_blocks(const Batch& batch, Tensor& x) {
  step_arena_.reset();
  BF_ASSIGN_OR_RETURN(const RotaryRows rotary, rotary_rows(compute_with(step_arena_), frequencies_, batch));
  const Compute compute = compute_with(block_arena_);
  float* values = x.mutable_view().values().data();
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const auto number = static_cast<std::uint32_t>(assignment_.first_layer) + static_cast<std::uint32_t>(layer);
    const trace::Scope scope(trace::Zone::kLayer, {.number = number});
    block_arena_.reset();
    BF_TRY(blocks_[layer]->forward(compute, batch, rotary, static_cast<int>(layer), cache_, values));
  }
  return {};
}

/// What leaves the stage.
Result<Tensor> Stage::finish(const Batch& batch, Tensor x) {
  if (!head_) return leads() ? std::move(x) : Tensor{};
  Tensor logits;
  if (leads()) {
    BF_ASSIGN_OR_RETURN(logits, Tensor::allocate(*pool_, DType::kF32, {batch.logit_rows(), config_.output_dim()}));
  }
  if (batch.logit_rows() > 0) {
    block_arena_.reset();
    const std::span<float> out = leads() ? logits.mutable_view().values() : std::span<float>{};
    BF_TRY(head_->forward(compute_with(block_arena_), batch, x.view().values().data(), out));
  }
  return logits;
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
