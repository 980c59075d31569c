#include "butterfly/model/inference/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "butterfly/model/inference/tensor_group.h"

namespace butterfly {
namespace {

/// Rows [begin, begin + count) of x.
ActivationRows rows_of(const ActivationRows& x, std::int64_t begin, std::int64_t count) {
  ActivationRows part = x;
  part.rows = count;
  if (x.values != nullptr) part.values = x.values + begin * x.cols;
  if (x.quants == nullptr) return part;
  const std::int64_t blocks = x.cols / kQuantBlock;
  part.quants = x.quants + begin * x.cols;
  part.scales = x.scales + begin * blocks;
  part.sums = x.sums + begin * blocks;
  return part;
}

/// Adds up the slots of one row.
struct SlotSum {
  const Kernels* kernels = nullptr;
  const SliceBorders* slots = nullptr;  // of the experts
  const ExpertChoice* choice = nullptr;
  std::span<const int> pair_of;
  const float* outputs = nullptr;  // [pairs, dim]
  std::int64_t dim = 0;

  /// y = (residual +) the sum of the slots of `node` + zeros. Slots of which the row chose no expert would be +0 and
  /// drop out: they could change but the sign of a zero, and +0 at the end takes that away. The residual may be null.
  /// scratch: dim floats for each expert that a row uses.
  void operator()(std::int64_t row, const SliceRange& node, const float* zeros, const float* residual, float* scratch,
                  float* y) const {
    std::array<float*, kReductionSlices> sums{};
    const auto used = static_cast<std::size_t>(choice->used);
    const std::size_t first = static_cast<std::size_t>(row) * used;
    int slot = node.first;
    bool any = false;
    for (std::size_t at = first; at < first + used; ++at) {
      const int expert = choice->experts[at];
      if (expert < slots->at(node.first)) continue;
      while (slot < node.last && expert >= slots->at(slot + 1)) ++slot;
      if (slot == node.last) break;
      float*& sum = sums[static_cast<std::size_t>(slot)];
      if (sum == nullptr) {
        sum = scratch + static_cast<std::int64_t>(at - first) * dim;
        std::fill(sum, sum + dim, 0.0f);
        any = true;
      }
      kernels->add_scaled(choice->weights[at], outputs + pair_of[at] * dim, dim, sum);
    }
    if (any) {
      kernels->fold(sums.data(), dim, zeros, residual, y);
    } else {
      std::copy(zeros, zeros + dim, y);
    }
  }
};

/// Calls work(row, scratch) for every row, with `floats` floats of scratch that no other thread uses meanwhile.
template <typename Work>
Status for_rows_with_scratch(const Compute& compute, std::int64_t rows, std::int64_t floats, const Work& work) {
  const int members = rows == 1 ? 1 : compute.team->size();
  BF_ASSIGN_OR_RETURN(float* scratch, allocate_floats(compute, members, floats));
  const auto run = [&](int member) {
    const WorkRange range = split_work(rows, member, members);
    for (std::int64_t row = range.begin; row < range.end; ++row) work(row, scratch + member * floats);
  };
  if (members == 1) {
    run(0);
  } else {
    compute.team->run(run);
  }
  return {};
}

}  // namespace

Result<Experts> Experts::load(const ModelConfig& config, int layer, const WeightSource& source, ThreadTeam& team,
                              const Shard& shard) {
  Experts experts;
  experts.config_ = config;
  experts.held_ = shard.experts;
  experts.shared_ff_ = shard.shared_ff;
  experts.shared_held_ = shard.slices;
  const std::string prefix = fmt::format("blk.{}.", layer);
  const MoeConfig& moe = config.moe;
  BF_ASSIGN_OR_RETURN(experts.router_, Router::load(config, prefix, source, team));
  const LinearPart in{WeightPart::all(moe.ff_dim, config.model_dim), moe.expert_bias};
  const LinearPart out{WeightPart::all(config.model_dim, moe.ff_dim), moe.expert_bias};
  experts.input_form_ = row_form({&experts.router_.matrix()});
  const SliceBorders slices = expert_ff_slices(config);
  experts.hidden_form_ = {.slices = slices, .held = {0, slices.count()}};
  for (std::int64_t e = shard.experts.begin; e < shard.experts.end; ++e) {
    Mlp& mlp = experts.experts_.emplace_back();
    BF_ASSIGN_OR_RETURN(mlp.gate, load_linear(source, fmt::format("{}ffn_gate_exps.{}", prefix, e), in, team));
    BF_ASSIGN_OR_RETURN(mlp.up, load_linear(source, fmt::format("{}ffn_up_exps.{}", prefix, e), in, team));
    BF_ASSIGN_OR_RETURN(mlp.down, load_linear(source, fmt::format("{}ffn_down_exps.{}", prefix, e), out, team));
    experts.input_form_.add(mlp.gate.matrix);
    experts.input_form_.add(mlp.up.matrix);
    experts.floats_ |= mlp.reads_floats();
    experts.hidden_form_.add(mlp.down.matrix);
  }
  if (moe.shared_ff_dim > 0) BF_TRY(experts.load_shared(prefix, source, team, shard));
  return experts;
}

Status Experts::load_shared(const std::string& prefix, const WeightSource& source, ThreadTeam& team,
                            const Shard& shard) {
  const std::int64_t dim = config_.model_dim;
  const std::int64_t ff_dim = config_.moe.shared_ff_dim;
  const LinearPart in{{ff_dim, dim, shard.shared_ff, {0, dim}}, false};
  const LinearPart out{{dim, ff_dim, {0, dim}, shard.shared_ff}, false};
  BF_ASSIGN_OR_RETURN(shared_.gate, load_linear(source, prefix + "ffn_gate_shexp", in, team));
  BF_ASSIGN_OR_RETURN(shared_.up, load_linear(source, prefix + "ffn_up_shexp", in, team));
  BF_ASSIGN_OR_RETURN(shared_.down, load_linear(source, prefix + "ffn_down_shexp", out, team));
  input_form_.add(shared_.gate.matrix);
  input_form_.add(shared_.up.matrix);
  if (!config_.moe.shared_gate) return {};
  BF_ASSIGN_OR_RETURN(const std::vector<float> gate,
                      load_vector(source, prefix + "ffn_gate_inp_shexp.weight", dim, {0, dim}));
  const MatrixView view{.type = DType::kF32, .rows = 1, .cols = dim, .bytes = std::as_bytes(std::span(gate))};
  BF_ASSIGN_OR_RETURN(shared_gate_, PackedMatrix::pack(view, team));
  return {};
}

Status Experts::forward(const Compute& compute, std::int64_t rows, float* input, float* y) const {
  const std::int64_t dim = config_.model_dim;
  BF_ASSIGN_OR_RETURN(const auto x, allocate_activations(*compute.arena, rows, dim, input));
  prepare_rows(compute, x, input_form_);
  if (config_.moe.shared_ff_dim > 0) BF_TRY(add_shared(compute, x, y));
  BF_ASSIGN_OR_RETURN(const ExpertChoice choice, router_.choose(compute, x));
  BF_ASSIGN_OR_RETURN(const Pairs pairs, pair_up(compute, choice));
  BF_ASSIGN_OR_RETURN(const float* outputs, run(compute, x, pairs));

  const SliceBorders slots = expert_slices(config_);
  const SlotSum sum{.kernels = compute.kernels,
                    .slots = &slots,
                    .choice = &choice,
                    .pair_of = pairs.of,
                    .outputs = outputs,
                    .dim = dim};
  const std::int64_t floats = choice.used * dim;
  const trace::Work work = work_on_rows(rows, dim, (choice.used + 2) * dim);
  BF_ASSIGN_OR_RETURN(float* zeros, allocate_floats(compute, 1, dim));
  std::fill(zeros, zeros + dim, 0.0f);
  if (compute.group == nullptr) {
    const trace::Scope scope(trace::Zone::kReduceSlices, work);
    return for_rows_with_scratch(compute, rows, floats, [&](std::int64_t row, float* scratch) {
      sum(row, {}, zeros, y + row * dim, scratch, y + row * dim);
    });
  }
  const auto fill = [&](std::span<const SliceRange> nodes, float* sums) -> Status {
    const auto count = static_cast<std::int64_t>(nodes.size());
    const trace::Scope scope(trace::Zone::kReduceSlices, work);
    return for_rows_with_scratch(compute, rows, floats, [&](std::int64_t row, float* scratch) {
      for (std::int64_t i = 0; i < count; ++i) {
        sum(row, nodes[static_cast<std::size_t>(i)], zeros, nullptr, scratch, sums + (row * count + i) * dim);
      }
    });
  };
  return compute.group->add_experts(compute, rows, fill, zeros, y);
}

Status Experts::add_shared(const Compute& compute, const ActivationRows& x, float* y) const {
  const std::int64_t ff_dim = shared_ff_.size();
  BF_ASSIGN_OR_RETURN(float* up, allocate_floats(compute, x.rows, ff_dim));
  BF_ASSIGN_OR_RETURN(float* gate, allocate_floats(compute, x.rows, ff_dim));
  BF_ASSIGN_OR_RETURN(const auto h, allocate_activations(*compute.arena, x.rows, ff_dim, up));
  if (ff_dim > 0) {
    const SliceBorders whole = SliceBorders::single(x.cols);
    const std::array gate_up{LinearJob{&shared_.up.matrix, &x, whole, nullptr, nullptr, up},
                             LinearJob{&shared_.gate.matrix, &x, whole, nullptr, nullptr, gate}};
    run_linear(*compute.kernels, *compute.team, gate_up, trace::Zone::kGateUp);
    const MlpActivation kind{.mlp = config_.mlp,
                             .activation = config_.activation,
                             .limit = config_.moe.swiglu_limit,
                             .form = row_form(shared_.down.matrix, shared_slices(config_), shared_held_)};
    activate_rows(compute, kind, h, gate, up);
  }
  BF_TRY(add_divided_matmul(compute, DividedMatmul::kSharedDown, shared_slices(config_),
                            {.weights = &shared_.down.matrix, .bias = nullptr}, h, y));
  return config_.moe.shared_gate ? scale_by_gate(compute, x, y) : Status{};
}

Status Experts::scale_by_gate(const Compute& compute, const ActivationRows& x, float* y) const {
  BF_ASSIGN_OR_RETURN(float* gates, allocate_floats(compute, x.rows, 1));
  const LinearJob job{.weights = &shared_gate_, .x = &x, .slices = SliceBorders::single(x.cols), .y = gates};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1), trace::Zone::kRouter);
  const trace::Scope scope(trace::Zone::kActivation, work_on_rows(x.rows, x.cols, 2 * x.cols));
  compute.kernels->sigmoid(gates, x.rows, gates);
  for_each_row(compute, x.rows, x.cols,
               [&](std::int64_t row) { compute.kernels->scale(gates[row], x.cols, y + row * x.cols); });
  return {};
}

Result<Experts::Pairs> Experts::pair_up(const Compute& compute, const ExpertChoice& choice) const {
  const trace::Scope scope(trace::Zone::kGather, {.number = static_cast<std::uint32_t>(choice.rows)});
  const auto held = static_cast<std::size_t>(held_.size());
  Pairs pairs;
  BF_ASSIGN_OR_RETURN(pairs.begin, compute.arena->allocate_array<int>(held + 1));
  BF_ASSIGN_OR_RETURN(pairs.row, compute.arena->allocate_array<int>(choice.experts.size()));
  BF_ASSIGN_OR_RETURN(pairs.of, compute.arena->allocate_array<int>(choice.experts.size()));
  std::ranges::fill(pairs.begin, 0);
  const auto place = [&](int expert) { return static_cast<std::size_t>(expert - held_.begin); };
  for (const int expert : choice.experts) {
    if (held_.contains(expert)) ++pairs.begin[place(expert) + 1];
  }
  for (std::size_t e = 0; e < held; ++e) pairs.begin[e + 1] += pairs.begin[e];
  BF_ASSIGN_OR_RETURN(const auto next, compute.arena->allocate_array<int>(held + 1));
  std::ranges::copy(pairs.begin, next.begin());
  for (std::size_t i = 0; i < choice.experts.size(); ++i) {
    const int expert = choice.experts[i];
    pairs.of[i] = held_.contains(expert) ? next[place(expert)]++ : -1;
    if (pairs.of[i] >= 0) {
      pairs.row[static_cast<std::size_t>(pairs.of[i])] = static_cast<int>(i / static_cast<std::size_t>(choice.used));
    }
  }
  return pairs;
}

Result<ActivationRows> Experts::gather(const Compute& compute, const ActivationRows& x, const Pairs& pairs) const {
  const std::int64_t count = pairs.count();
  trace::Work work = work_on_rows(count, x.cols, floats_ ? 2 * x.cols : 0);
  if (input_form_.quantised) work.bytes += 2 * quantised_bytes(count, x.cols);
  const trace::Scope scope(trace::Zone::kGather, work);
  float* values = nullptr;
  if (floats_) {
    BF_ASSIGN_OR_RETURN(values, allocate_floats(compute, count, x.cols));
  }
  BF_ASSIGN_OR_RETURN(ActivationRows rows, allocate_activations(*compute.arena, count, x.cols, values));
  const auto cols = static_cast<std::size_t>(x.cols);
  const std::size_t blocks = cols / kQuantBlock;
  for_each_row(compute, count, x.cols, [&](std::int64_t pair) {
    const auto to = static_cast<std::size_t>(pair);
    const auto from = static_cast<std::size_t>(pairs.row[to]);
    if (floats_) std::memcpy(values + to * cols, x.values + from * cols, cols * sizeof(float));
    if (!input_form_.quantised) return;
    std::memcpy(rows.quants + to * cols, x.quants + from * cols, cols);
    std::memcpy(rows.scales + to * blocks, x.scales + from * blocks, blocks * sizeof(float));
    std::memcpy(rows.sums + to * blocks, x.sums + from * blocks, blocks * sizeof(BlockSums));
  });
  return rows;
}

/// outputs[pairs, model_dim]
Result<float*> Experts::run(const Compute& compute, const ActivationRows& x, const Pairs& pairs) const {
  const std::int64_t count = pairs.count();
  const std::int64_t ff_dim = config_.moe.ff_dim;
  BF_ASSIGN_OR_RETURN(float* outputs, allocate_floats(compute, count, x.cols));
  if (count == 0) return outputs;
  BF_ASSIGN_OR_RETURN(const ActivationRows all, gather(compute, x, pairs));
  BF_ASSIGN_OR_RETURN(float* up, allocate_floats(compute, count, ff_dim));
  BF_ASSIGN_OR_RETURN(float* gate, allocate_floats(compute, count, ff_dim));
  BF_ASSIGN_OR_RETURN(const auto h, allocate_activations(*compute.arena, count, ff_dim, up));
  BF_ASSIGN_OR_RETURN(const auto in, compute.arena->allocate_array<ActivationRows>(experts_.size()));
  BF_ASSIGN_OR_RETURN(const auto hidden, compute.arena->allocate_array<ActivationRows>(experts_.size()));
  BF_ASSIGN_OR_RETURN(const auto gate_up, compute.arena->allocate_array<LinearJob>(2 * experts_.size()));
  BF_ASSIGN_OR_RETURN(const auto down, compute.arena->allocate_array<LinearJob>(experts_.size()));
  const SliceBorders whole = SliceBorders::single(x.cols);
  const SliceBorders slices = expert_ff_slices(config_);
  std::size_t active = 0;
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    const std::int64_t begin = pairs.begin[e];
    const std::int64_t rows = pairs.begin[e + 1] - begin;
    if (rows == 0) continue;
    const Mlp& mlp = experts_[e];
    in[active] = rows_of(all, begin, rows);
    hidden[active] = rows_of(h, begin, rows);
    const ActivationRows* from = &in[active];
    gate_up[2 * active] = {&mlp.up.matrix, from, whole, mlp.up.bias_or_null(), nullptr, up + begin * ff_dim, 0};
    gate_up[2 * active + 1] = {&mlp.gate.matrix,      from, whole, mlp.gate.bias_or_null(), nullptr,
                               gate + begin * ff_dim, 0};
    down[active] = {&mlp.down.matrix, &hidden[active],          slices, mlp.down.bias_or_null(),
                    nullptr,          outputs + begin * x.cols, 0};
    ++active;
  }
  run_linear(*compute.kernels, *compute.team, gate_up.first(2 * active), trace::Zone::kExperts);
  const MlpActivation kind{
      .mlp = config_.mlp, .activation = config_.activation, .limit = config_.moe.swiglu_limit, .form = hidden_form_};
  activate_rows(compute, kind, h, gate, up);
  run_linear(*compute.kernels, *compute.team, down.first(active), trace::Zone::kExperts);
  return outputs;
}

const PackedMatrix* Experts::matrix(std::string_view name) const {
  if (name == "ffn_gate_inp") return &router_.matrix();
  const std::array<std::pair<std::string_view, const LinearWeights Mlp::*>, 3> parts{
      {{"ffn_gate_", &Mlp::gate}, {"ffn_up_", &Mlp::up}, {"ffn_down_", &Mlp::down}}};
  for (const auto& [stem, part] : parts) {
    if (!name.starts_with(stem)) continue;
    std::string_view rest = name.substr(stem.size());
    if (rest == "shexp") return config_.moe.shared_ff_dim > 0 ? &(shared_.*part).matrix : nullptr;
    if (!rest.starts_with("exps.")) return nullptr;
    rest.remove_prefix(std::string_view("exps.").size());
    int expert = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
    if (error != std::errc() || end != rest.data() + rest.size() || !held_.contains(expert)) return nullptr;
    return &(experts_[static_cast<std::size_t>(expert - held_.begin)].*part).matrix;
  }
  return nullptr;
}

std::uint64_t Experts::packed_bytes() const {
  const auto bytes_of = [](const Mlp& mlp) { return mlp.gate.bytes() + mlp.up.bytes() + mlp.down.bytes(); };
  std::uint64_t bytes = router_.packed_bytes() + bytes_of(shared_) + shared_gate_.bytes();
  for (const Mlp& mlp : experts_) bytes += bytes_of(mlp);
  return bytes;
}

}  // namespace butterfly
