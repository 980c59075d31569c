#include "butterfly/model/training/trainable_transformer.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/kernel/training/training_dispatch.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/passes/train_zones.h"
#include "butterfly/model/training/train_block.h"
#include "butterfly/model/training/train_embedding.h"
#include "butterfly/model/training/train_initialize.h"
#include "butterfly/model/training/train_memory.h"
#include "butterfly/trace/held.h"

namespace butterfly {
namespace {

Status check_options(const ModelConfig& config, const TransformerOptions& options) {
  if (options.micro_batch < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a micro-batch of {} sequences, expected at least 1",
                      options.micro_batch);
  }
  if (options.seq < 1 || options.seq > config.context) {
    return make_error(ErrorCode::kInvalidArgument, "sequences of {} tokens, the model takes 1 to {}", options.seq,
                      config.context);
  }
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 24;  // sizes of buffers stay far from overflow
  if (std::int64_t{options.micro_batch} * options.seq > kMaxRows) {
    return make_error(ErrorCode::kInvalidArgument, "a micro-batch of {} sequences of {} tokens, at most {} tokens fit",
                      options.micro_batch, options.seq, kMaxRows);
  }
  if (options.threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads, expected at least 1", options.threads);
  }
  return {};
}

std::uint64_t angle_bytes(const ModelConfig& config, int seq) {
  if (config.position != PositionKind::kRope) return 0;
  return 2 * static_cast<std::uint64_t>(seq) * rotary_frequencies(config).size() * sizeof(float);
}

class PlannedTransformer final : public TrainableTransformer, private PartPasses {
 public:
  PlannedTransformer(const ModelConfig& config, const TransformerOptions& options, ParameterSet parameters)
      : config_(config), options_(options), parameters_(std::move(parameters)), team_(options.threads) {}

  /// Everything that can fail.
  Status plan() {
    context_.config = &config_;
    context_.options = options_;
    room_ = options_.micro_batch;
    context_.kernels = &training_kernels(options_.isa);
    context_.team = &team_;
    gemm_ = make_gemm(options_.precision, options_.isa, team_);
    context_.gemm = context_.exact_gemm = gemm_.get();
    if (context_.bf16()) {
      BF_TRY(copy_weights_as_bf16());
    } else {
      context_.operand_weights = parameters_.weights().data();
    }
    context_.weights = parameters_.weights().data();
    context_.gradients = parameters_.gradients().data();
    BF_TRY(plan_angles());
    for (int layer = 0; layer < config_.layers; ++layer) {
      BF_ASSIGN_OR_RETURN(TrainBlock block, make_block(config_, options_.fusion, parameters_, layer));
      blocks_.push_back(std::move(block));
    }
    BF_ASSIGN_OR_RETURN(embedding_and_lm_head_,
                        make_embedding_and_lm_head(config_, parameters_, blocks_.front().attention_range.begin));
    units_ = units();
    find_matmuls();
    BF_TRY(set_part(options_.part));
    if (options_.memory.weights == Residency::kWhole) weights_changed();
    return {};
  }

  const ModelConfig& config() const override { return config_; }
  const TransformerOptions& options() const override { return options_; }
  ParameterSet& parameters() override { return parameters_; }
  ThreadTeam& team() override { return team_; }

  TrainingMemory memory() const override {
    const std::uint64_t flat = parameters_.weights().size_bytes();
    const auto whole = [](Residency residency) { return residency == Residency::kWhole ? 1U : 0U; };
    return {.parameter_bytes = (flat + weight_copy_.bytes()) * whole(options_.memory.weights),
            .gradient_bytes = flat * whole(options_.memory.gradients),
            .activation_bytes = memory_.activation_bytes(),
            .scratch_bytes = memory_.scratch_bytes() + angles_.bytes()};
  }

  using TrainableTransformer::initialize;
  void initialize(std::uint64_t seed, const ParameterMade& made) override {
    initialize_parameters(config_, seed, parameters_, team_, made);
    weights_changed();
  }

  Status make_room(int sequences) override {
    if (sequences == room_) return {};
    room_ = sequences;
    return set_part(part_);
  }

  Result<double> forward(std::span<const TokenId> tokens, std::span<const TokenId> targets) override {
    BF_ASSIGN_OR_RETURN(const double loss, run_forward(tokens, targets));
    kept_[0] = 1;
    return loss;
  }

  Result<double> evaluate(std::span<const TokenId> tokens, std::span<const TokenId> targets) override {
    return run_forward(tokens, targets);
  }

  using TrainableTransformer::clear_gradients;
  void clear_gradients(std::span<float> into, OldGradients old) override {
    begin_gradients(into, std::array{ParameterRange{.begin = 0, .end = parameters_.padded_size()}}, old);
  }

  Status backward(float scale, const GradientsReady& ready) override {
    BF_CHECK(std::exchange(kept_[0], 0) != 0, "backward() follows a forward()");
    find_balance_slopes(0, scale);
    const auto tell = [&](ParameterRange range) {
      if (ready) ready(range);
    };
    BF_TRY(acquire(0, Pass::kBackward));
    BF_TRY(backward_lm_head(context_, embedding_and_lm_head_, memory_.scratch(),
                            {.targets = targets_, .scale = scale, .bias_below = bias_of(part_.last_layer - 1)}));
    release(0);
    tell(embedding_and_lm_head_.head_range);
    BF_TRY(backward_layers(0, tell));
    butterfly::embed_backward(context_, embedding_and_lm_head_, tokens_, memory_.scratch().dx);
    tell(embedding_and_lm_head_.embedding_range);
    context_.weight_gradients = Accumulate::kYes;
    return {};
  }

  PartPasses& part() override { return *this; }

  void weights_changed() override {
    if (residency_ != nullptr) return;  // each unit is copied when it is there
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      const bool here = unit == 0 ? part_.ends : part_.first_layer < unit && unit <= part_.last_layer;
      for (const ParameterRange& range : unit_ranges(unit)) {
        if (here) copy_as_bf16(range);
      }
    }
  }

  std::vector<ParameterUnit> units() const override {
    std::vector<ParameterUnit> units{
        {.ranges = {embedding_and_lm_head_.embedding_range, embedding_and_lm_head_.head_range}}};
    for (const TrainBlock& block : blocks_) {
      const ParameterRange &attention = block.attention_range, &ffn = block.ffn_range;
      units.push_back(
          {.ranges = {{.begin = std::min(attention.begin, ffn.begin), .end = std::max(attention.end, ffn.end)}}});
    }
    return units;
  }

  void set_residency(WeightResidency* residency) override { residency_ = residency; }

  Status idle(const GradientsReady& ready) override {
    BF_TRY(acquire(0, Pass::kForward));
    for (int layer = 0; layer < config_.layers; ++layer) {
      BF_TRY(acquire(layer + 1, Pass::kForward));
      release(layer + 1);
    }
    release(0);
    if (!ready) return {};
    BF_TRY(acquire(0, Pass::kBackward));
    release(0);
    ready(embedding_and_lm_head_.head_range);
    for (int layer = config_.layers - 1; layer >= 0; --layer) {
      const TrainBlock& block = blocks_[static_cast<std::size_t>(layer)];
      BF_TRY(acquire(layer + 1, Pass::kBackward));
      release(layer + 1);
      ready(block.ffn_range);
      ready(block.attention_range);
    }
    ready(embedding_and_lm_head_.embedding_range);
    return {};
  }

  double forward_flops_per_token() const override { return butterfly::forward_flops_per_token(config_, options_.seq); }

  RouterReport router_report() const override {
    const RouterTally& tally = tallies_[static_cast<std::size_t>(last_place_)];
    return {.balance_loss = balance_loss(config_, tally, context_.rows(), options_.router_aux_loss_over),
            .tokens = tally.tokens};
  }

 private:
  Status set_part(const ModelPart& part) override {
    part_ = part;
    if (part_.last_layer < 0) part_.last_layer = config_.layers;
    memory_ = {};  // before there is the new one
    context_.options.micro_batch = room_;
    BF_ASSIGN_OR_RETURN(memory_, TrainMemory::create(context_, part_));
    tokens_.resize(static_cast<std::size_t>(context_.rows()));
    targets_.resize(tokens_.size());
    tallies_.assign(static_cast<std::size_t>(part_.kept), RouterTally(config_));
    kept_.assign(static_cast<std::size_t>(part_.kept), 0);
    last_place_ = 0;
    return {};
  }

  std::span<float> stream_in(int place) override { return rows_at(input_of(place)); }
  std::span<float> stream_out() override { return rows_at(memory_.scratch().branch); }
  std::span<float> stream_gradient() override { return rows_at(memory_.scratch().dx); }
  RouterTally& router_tally(int place) override { return tallies_[static_cast<std::size_t>(place)]; }

  Status embed(std::span<const TokenId> tokens) override {
    BF_TRY(check_ids(tokens, 0, "tokens"));
    butterfly::embed(context_, embedding_and_lm_head_, tokens, memory_.scratch().branch);
    return {};
  }

  Result<double> forward_part(int place, std::span<const TokenId> targets) override {
    last_place_ = place;
    BF_ASSIGN_OR_RETURN(const ResidualSum stream, forward_layers(place));
    kept_[static_cast<std::size_t>(place)] = 1;
    if (part_.ends) {
      BF_TRY(check_ids(targets, -1, "targets"));
      std::ranges::copy(targets, targets_.begin());
      return forward_lm_head(context_, embedding_and_lm_head_, memory_.scratch(), stream, targets_);
    }
    add_rows(stream.stream, memory_.scratch().branch);  // the other summand is there
    return 0.0;
  }

  Status backward_part(int place, float scale, const FreshGradients& fresh) override {
    BF_CHECK(std::exchange(kept_[static_cast<std::size_t>(place)], 0) != 0, "backward_part() follows a forward_part()");
    find_balance_slopes(place, scale);
    const TrainScratch& scratch = memory_.scratch();
    if (part_.ends) {
      begin_gradients(fresh.head, std::array{embedding_and_lm_head_.head_range});
      BF_TRY(backward_lm_head(context_, embedding_and_lm_head_, scratch, {.targets = targets_, .scale = scale}));
    } else {
      context_.for_rows(context_.rows(), [&](int, std::int64_t row) {
        const std::int64_t n = config_.model_dim;
        context_.pack_operand(scratch.dx + row * n, n, context_.operand_at(scratch.dx_operand, row * n));
      });
    }
    std::vector<ParameterRange> ranges;
    for (int layer = part_.first_layer; layer < part_.last_layer; ++layer) ranges.push_back(unit_ranges(layer + 1)[0]);
    begin_gradients(fresh.layers, ranges);
    // What is above these layers would have taken it.
    const std::int64_t n = config_.model_dim, bias = bias_of(part_.last_layer - 1);
    if (bias != kNoParameter) add_column_sums(context_, {.x = scratch.dx, .stride = n, .count = n, .offset = bias});
    BF_TRY(backward_layers(place, [](ParameterRange) {}));
    context_.weight_gradients = Accumulate::kYes;
    return {};
  }

  Status embed_backward(std::span<const TokenId> tokens, std::span<float> fresh) override {
    BF_TRY(check_ids(tokens, 0, "tokens"));
    begin_gradients(fresh, std::array{embedding_and_lm_head_.embedding_range});
    butterfly::embed_backward(context_, embedding_and_lm_head_, tokens, memory_.scratch().dx);
    context_.weight_gradients = Accumulate::kYes;
    return {};
  }

  std::span<float> rows_at(float* begin) const {
    return {begin, static_cast<std::size_t>(context_.rows() * config_.model_dim)};
  }

  /// Of a part without layers, the head reads it.
  float* input_of(int place) const {
    if (part_.first_layer == part_.last_layer) return memory_.scratch().output;
    return memory_.block(place, part_.first_layer).input;
  }

  /// to += from, [rows, model_dim] each.
  void add_rows(const float* from, float* to) const {
    const std::int64_t n = config_.model_dim;
    context_.for_rows(context_.rows(),
                      [&](int, std::int64_t row) { context_.kernels->add(from + row * n, n, to + row * n); });
  }

  /// The bias of a layer's output (bias_of_output()), where it is one of these.
  std::int64_t bias_of(int layer) const {
    if (layer < part_.first_layer) return kNoParameter;
    return bias_of_output(context_, blocks_[static_cast<std::size_t>(layer)]);
  }

  /// What follows adds to `fresh`, where the parameters in `ranges` count as zero, or, where it is empty, to the
  /// parameters' own gradients.
  void begin_gradients(std::span<float> fresh, std::span<const ParameterRange> ranges,
                       OldGradients old = OldGradients::kAny) {
    context_.gradients = fresh.empty() ? parameters_.gradients().data() : fresh.data();
    context_.weight_gradients = fresh.empty() ? Accumulate::kYes : Accumulate::kNo;
    if (fresh.empty() || old == OldGradients::kZero) return;
    BF_CHECK(fresh.size() == parameters_.gradients().size(), "gradients of all parameters");
    const auto is_cleared = [&](const Parameter& parameter) {
      return !by_matmuls_.contains(parameter.offset) && std::ranges::any_of(ranges, [&](const ParameterRange& range) {
        return range.begin <= parameter.offset && parameter.offset < range.end;
      });
    };
    const trace::Scope scope(trace::Zone::kGradientClear,
                             work_of({.rows = 1, .cols = cleared_, .bytes = sizeof(float)}));
    team_.run([&](int member) {
      for (const Parameter& parameter : parameters_.list()) {
        if (!is_cleared(parameter)) continue;
        const std::span<float> gradient = ParameterSet::part(fresh, parameter);
        const WorkRange range = split_work(static_cast<long>(gradient.size()), member, team_.size());
        std::fill(gradient.data() + range.begin, gradient.data() + range.end, 0.0f);
      }
    });
  }

  void find_balance_slopes(int place, float scale) {
    float* slopes = memory_.scratch().balance;
    if (slopes == nullptr) return;
    balance_slopes(config_, tallies_[static_cast<std::size_t>(place)],
                   {.rows = context_.rows(),
                    .scope = options_.router_aux_loss_over,
                    .factor = static_cast<double>(scale) * options_.router_aux_loss},
                   slopes);
  }

  /// The residual stream behind the part's layers.
  Result<ResidualSum> forward_layers(int place) {
    ResidualSum stream{.stream = input_of(place)};
    for (int layer = part_.first_layer; layer < part_.last_layer; ++layer) {
      const trace::Scope scope(trace::Zone::kLayer, {.number = static_cast<std::uint32_t>(layer)});
      BF_TRY(acquire(layer + 1, Pass::kForward));
      BF_ASSIGN_OR_RETURN(stream,
                          forward_block(context_, blocks_[static_cast<std::size_t>(layer)], memory_.block(place, layer),
                                        memory_.scratch(), stream, tally_of(place, layer)));
      release(layer + 1);
    }
    return stream;
  }

  template <typename Tell>
  Status backward_layers(int place, const Tell& tell) {
    const TrainScratch& scratch = memory_.scratch();
    for (int layer = part_.last_layer - 1; layer >= part_.first_layer; --layer) {
      const trace::Scope scope(trace::Zone::kLayer, {.number = static_cast<std::uint32_t>(layer)});
      BF_TRY(acquire(layer + 1, Pass::kBackward));
      const TrainBlock& block = blocks_[static_cast<std::size_t>(layer)];
      const BlockActivations& activations = memory_.block(place, layer);
      BF_TRY(recompute_block(context_, block, activations, scratch));
      BF_TRY(backward_ffn(context_, block, activations, scratch));
      if (!config_.parallel_block) tell(block.ffn_range);
      BF_TRY(backward_attention(context_, block, activations, scratch, bias_of(layer - 1)));
      release(layer + 1);
      if (config_.parallel_block) tell(block.ffn_range);
      tell(block.attention_range);
    }
    return {};
  }

  Status acquire(int unit, Pass pass) {
    if (residency_ == nullptr) return {};
    BF_ASSIGN_OR_RETURN(const bool others, residency_->acquire(unit, pass));
    if (!others || !context_.bf16()) return {};
    for (const ParameterRange& range : unit_ranges(unit)) copy_as_bf16(range);
    return {};
  }

  void release(int unit) {
    if (residency_ == nullptr) return;
    residency_->release(unit);
    if (!weight_copy_.is_sparse()) return;
    for (const ParameterRange& range : unit_ranges(unit)) {
      weight_copy_.release(static_cast<std::uint64_t>(range.begin) * sizeof(unsigned short),
                           static_cast<std::uint64_t>(range.end) * sizeof(unsigned short));
    }
  }

  const std::vector<ParameterRange>& unit_ranges(int unit) const {
    return units_[static_cast<std::size_t>(unit)].ranges;
  }

  void copy_as_bf16(ParameterRange all) {
    if (!context_.bf16()) return;
    const auto count = static_cast<long>(all.size());
    const trace::Scope scope(trace::Zone::kCast,
                             work_of({.rows = 1, .cols = count, .bytes = sizeof(float) + sizeof(unsigned short)}));
    const float* weights = parameters_.weights().data() + all.begin;
    auto* copy = reinterpret_cast<unsigned short*>(weight_copy_.data()) + all.begin;
    team_.run([&](int member) {
      const WorkRange range = split_work(count, member, team_.size());
      context_.kernels->floats_to_bf16(weights + range.begin, range.end - range.begin, copy + range.begin);
    });
  }

  /// The weights of which a backward pass has a matmul before anything else adds to their gradients.
  void find_matmuls() {
    const auto note = [&](const Projection& projection) {
      for (int i = 0; i < projection.count; ++i) {
        const Projection::Part& part = projection.parts[static_cast<std::size_t>(i)];
        // Joined ones are several parameters.
        for (const Parameter& parameter : parameters_.list()) {
          const std::int64_t behind = part.weight + part.rows * projection.cols;
          if (parameter.offset >= part.weight && parameter.offset < behind) by_matmuls_.insert(parameter.offset);
        }
      }
    };
    note(embedding_and_lm_head_.head);
    for (const TrainBlock& block : blocks_) {
      for (const Projection* projection : {&block.qkv, &block.attn_output, &block.ffn_in, &block.ffn_down}) {
        note(*projection);
      }
      if (!block.experts) continue;
      const TrainExperts& experts = *block.experts;
      for (const Projection* projection :
           {&experts.router, &experts.shared_in, &experts.shared_down, &experts.shared_gate}) {
        note(*projection);
      }
      for (const Projection& in : experts.in) note(in);
      for (const Projection& down : experts.down) note(down);
    }
    for (const Parameter& parameter : parameters_.list()) {
      if (!by_matmuls_.contains(parameter.offset)) cleared_ += parameter.size();
    }
  }

  Status copy_weights_as_bf16() {
    const std::uint64_t bytes = parameters_.weights().size() * sizeof(unsigned short);
    const bool whole = options_.memory.weights == Residency::kWhole;
    BF_ASSIGN_OR_RETURN(weight_copy_,
                        whole ? AlignedBuffer::create(bytes) : AlignedBuffer::create_sparse(bytes, PageKind::kSmall));
    weight_copy_held_ = trace::Held(trace::Owner::kWeights, whole ? bytes : 0);
    context_.operand_weights = weight_copy_.data();
    if (options_.fusion.attention) return {};
    exact_gemm_ = make_gemm(Precision::kFloat32, options_.isa, team_);
    context_.exact_gemm = exact_gemm_.get();
    return {};
  }

  Status plan_angles() {
    if (config_.position != PositionKind::kRope) return {};
    const auto seq = static_cast<std::size_t>(options_.seq);
    BF_ASSIGN_OR_RETURN(angles_, AlignedBuffer::create(angle_bytes(config_, options_.seq)));
    angles_held_ = trace::Held(trace::Owner::kBuffers, angles_.bytes());
    auto* next = reinterpret_cast<float*>(angles_.data());
    for (const int kind : {kMainRope, kLocalRope}) {
      if (kind == kLocalRope && !config_.has_local_rope()) break;
      const RopeConfig& rope = kind == kMainRope ? config_.rope : config_.local_rope;
      const std::vector<double> frequencies = rotary_frequencies(rope);
      const std::size_t pairs = frequencies.size();
      float* cos = next;
      float* sin = cos + seq * pairs;
      next = sin + seq * pairs;
      for (std::size_t t = 0; t < seq; ++t) {
        rotary_angles(frequencies, static_cast<std::int64_t>(t), {cos + t * pairs, pairs}, {sin + t * pairs, pairs});
      }
      for (float* value = cos; rope.magnitude != 1.0f && value != next; ++value) *value *= rope.magnitude;
      context_.ropes[static_cast<std::size_t>(kind)] = {.cos = cos,
                                                        .sin = sin,
                                                        .pairs = static_cast<std::int64_t>(pairs),
                                                        .adjacent = rope.pairs == RopePairs::kAdjacent};
    }
    return {};
  }

  Status check_ids(std::span<const TokenId> ids, int lowest, const char* what) const {
    if (ids.size() != tokens_.size()) {
      return make_error(ErrorCode::kInvalidArgument, "{} {}, the transformer takes {} x {} (sequences x tokens)",
                        ids.size(), what, context_.options.micro_batch, options_.seq);
    }
    for (const TokenId id : ids) {
      if (id.value < lowest || id.value >= config_.vocab) {
        return make_error(ErrorCode::kInvalidArgument, "{} of {}, the vocabulary has {}", what, id.value,
                          config_.vocab);
      }
    }
    return {};
  }

  /// The next pass is over this number of tokens.
  Status take_rows(std::size_t tokens) {
    const auto seq = static_cast<std::size_t>(options_.seq), sequences = tokens / seq;
    if (sequences < 1 || sequences > static_cast<std::size_t>(room_) || tokens % seq != 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} tokens, the transformer takes 1 to {} x {} (sequences x tokens)", tokens, room_,
                        options_.seq);
    }
    if (tokens == tokens_.size()) return {};
    context_.options.micro_batch = static_cast<int>(sequences);
    memory_.lay_out(context_);
    tokens_.resize(tokens);
    targets_.resize(tokens);
    return {};
  }

  Result<double> run_forward(std::span<const TokenId> tokens, std::span<const TokenId> targets) {
    kept_[0] = 0;
    BF_TRY(take_rows(tokens.size()));
    BF_TRY(check_ids(tokens, 0, "tokens"));
    BF_TRY(check_ids(targets, -1, "targets"));
    std::ranges::copy(tokens, tokens_.begin());
    std::ranges::copy(targets, targets_.begin());
    last_place_ = 0;
    tallies_[0].clear();
    BF_TRY(acquire(0, Pass::kForward));
    butterfly::embed(context_, embedding_and_lm_head_, tokens_, input_of(0));
    BF_ASSIGN_OR_RETURN(const ResidualSum stream, forward_layers(0));
    BF_ASSIGN_OR_RETURN(const double loss,
                        forward_lm_head(context_, embedding_and_lm_head_, memory_.scratch(), stream, targets_));
    release(0);
    return loss;
  }

  LayerTally tally_of(int place, int layer) {
    if (!config_.has_experts(layer)) return {};
    RouterTally& tally = tallies_[static_cast<std::size_t>(place)];
    const auto first = static_cast<std::size_t>(layer) * static_cast<std::size_t>(config_.moe.experts);
    return {.tokens = tally.tokens.data() + first, .probabilities = tally.probabilities.data() + first};
  }

  const ModelConfig config_;
  const TransformerOptions options_;
  ParameterSet parameters_;
  ThreadTeam team_;
  std::unique_ptr<Gemm> gemm_, exact_gemm_;
  AlignedBuffer weight_copy_;  // bf16
  trace::Held weight_copy_held_, angles_held_;
  AlignedBuffer angles_;  // of each kind of rope cos, then sin; [seq, dim / 2] each
  TrainContext context_;
  EmbeddingAndLmHead embedding_and_lm_head_;
  std::vector<TrainBlock> blocks_;
  std::set<std::int64_t> by_matmuls_;  // offsets of parameters
  std::int64_t cleared_ = 0;           // elements of the others
  std::vector<ParameterUnit> units_;
  WeightResidency* residency_ = nullptr;  // borrowed
  ModelPart part_;
  TrainMemory memory_;
  int room_ = 0;                           // sequences that there is memory for
  std::vector<RouterTally> tallies_;       // of each place
  std::vector<char> kept_;                 // what a backward pass needs, of each place
  int last_place_ = 0;                     // of the last forward
  std::vector<TokenId> tokens_, targets_;  // of the last forward
};

}  // namespace

Result<std::uint64_t> planned_activation_bytes(const ModelConfig& config, const TransformerOptions& options) {
  BF_TRY(validate(config));
  BF_TRY(check_trainable(config));
  BF_TRY(check_options(config, options));
  TrainContext context;
  context.config = &config;
  context.options = options;
  ModelPart part = options.part;
  if (part.last_layer < 0) part.last_layer = config.layers;
  return TrainMemory::planned_bytes(context, part) + angle_bytes(config, options.seq);
}

Result<std::unique_ptr<TrainableTransformer>> TrainableTransformer::create(const ModelConfig& config,
                                                                           const TransformerOptions& options) {
  BF_TRY(validate(config));
  BF_TRY(check_trainable(config));
  BF_TRY(check_options(config, options));
  BF_ASSIGN_OR_RETURN(ParameterSet parameters, ParameterSet::create(config, options.memory));
  auto transformer = std::make_unique<PlannedTransformer>(config, options, std::move(parameters));
  BF_TRY(transformer->plan());
  return std::unique_ptr<TrainableTransformer>(std::move(transformer));
}

}  // namespace butterfly
