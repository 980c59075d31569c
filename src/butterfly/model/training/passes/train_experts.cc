#include "butterfly/model/training/passes/train_experts.h"

#include <algorithm>
#include <cstring>

#include "butterfly/model/training/passes/train_pass.h"
#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

void copy_operand(const TrainContext& context, const void* from, std::int64_t n, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * context.operand_bytes());
}

void zero_operand(const TrainContext& context, std::int64_t n, void* to) {
  std::memset(to, 0, static_cast<std::size_t>(n) * context.operand_bytes());
}

/// Rows that are copied or added up by expert: `passes` over the pairs' [pairs, model_dim].
trace::Work dispatch_work(const TrainContext& context, std::uint64_t passes, trace::Pass pass) {
  return work_of({.rows = context.rows() * context.config->moe.experts_used,
                  .cols = context.config->model_dim,
                  .bytes = passes * sizeof(float),
                  .pass = pass});
}

std::int64_t pairs_of(const TrainContext& context, const ExpertActivations& a) {
  return a.begin[context.router_dim()];
}

/// Sorts the rows' choices by expert; the pairs of an expert are in the order of its rows.
void pair_up(const TrainContext& context, const ExpertActivations& a, std::int64_t* tokens) {
  const std::int64_t experts = context.router_dim();
  const std::int64_t used = context.config->moe.experts_used;
  const std::int64_t choices = context.rows() * used;
  std::fill_n(a.begin, experts + 1, 0);
  for (std::int64_t i = 0; i < choices; ++i) ++a.begin[a.experts[i] + 1];
  if (tokens != nullptr) std::copy_n(a.begin + 1, experts, tokens);
  for (std::int64_t e = 0; e < experts; ++e) {
    a.begin[e + 1] = a.begin[e] + (a.begin[e + 1] + kPairAlign - 1) / kPairAlign * kPairAlign;
  }
  std::fill_n(a.row_of, pairs_of(context, a), -1);
  std::int64_t* next = a.begin + experts + 1;
  std::copy_n(a.begin, experts, next);
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int64_t pair = next[a.experts[i]]++;
    a.row_of[pair] = static_cast<int>(i / used);
    a.pair_of[i] = static_cast<int>(pair);
  }
}

/// work(expert, its first pair, its number of pairs) for every expert.
template <typename Work>
Status for_experts(const TrainContext& context, const ExpertActivations& a, const Work& work) {
  for (std::int64_t e = 0; e < context.router_dim(); ++e) {
    BF_TRY(work(static_cast<std::size_t>(e), a.begin[e], a.begin[e + 1] - a.begin[e]));
  }
  return {};
}

/// work(member, pair, its row) for every pair; fill(pair) for those that fill up.
template <typename Work, typename Fill>
void for_pairs(const TrainContext& context, const ExpertActivations& a, const Fill& fill, const Work& work) {
  context.for_rows(pairs_of(context, a), [&](int member, std::int64_t pair) {
    a.row_of[pair] < 0 ? fill(pair) : work(member, pair, std::int64_t{a.row_of[pair]});
  });
}

void gather(const TrainContext& context, const ExpertActivations& a, const void* x) {
  const std::int64_t n = context.config->model_dim;
  for_pairs(
      context, a, [&](std::int64_t pair) { zero_operand(context, n, context.operand_at(a.gathered, pair * n)); },
      [&](int, std::int64_t pair, std::int64_t row) {
        copy_operand(context, context.operand_at(x, row * n), n, context.operand_at(a.gathered, pair * n));
      });
}

ActivationArgs of_pairs(const TrainContext& context, const ExpertActivations& a) {
  ActivationArgs mlp = a.mlp;
  mlp.rows = pairs_of(context, a);
  return mlp;
}

/// y (+)= the sum of the rows' experts by weight, ascending, and the shared one by its gate.
void add_up(const TrainContext& context, const ExpertActivations& a, const ExpertPass& pass) {
  const std::int64_t n = context.config->model_dim;
  const std::int64_t used = context.config->moe.experts_used;
  // Without a gate the shared expert has written y, or added to it.
  const trace::Scope scope(trace::Zone::kDispatch, dispatch_work(context, 3, context.pass));
  const bool begun = pass.accumulate == Accumulate::kYes || (a.shared.in != nullptr && a.shared_out == nullptr);
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    float* y = pass.y + row * n;
    if (!begun) std::memset(y, 0, static_cast<std::size_t>(n) * sizeof(float));
    for (std::int64_t i = row * used; i < (row + 1) * used; ++i) {
      context.kernels->add_scaled(a.out + a.pair_of[i] * n, a.weights[i], n, y);
    }
    if (a.shared_out == nullptr) return;
    context.kernels->add_scaled(a.shared_out + row * n, exact_sigmoid(a.gate_logits[row]), n, y);
  });
}

Status forward_shared(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                      const ExpertPass& pass) {
  if (experts.shared_in.count == 0) return {};
  BF_TRY(project(context, experts.shared_in, pass.x, a.shared.in));
  activation(context, a.shared);
  if (experts.shared_gate.count == 0) {
    return project(context, experts.shared_down, a.shared.hidden, pass.y, {.accumulate = pass.accumulate});
  }
  BF_TRY(project(context, experts.shared_gate, pass.x, a.gate_logits));
  return project(context, experts.shared_down, a.shared.hidden, a.shared_out);
}

Status run_experts(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a) {
  const std::int64_t n = context.config->model_dim;
  const std::int64_t width = context.mlp_in_dim(a.mlp.ff_dim);
  BF_TRY(for_experts(context, a, [&](std::size_t e, std::int64_t begin, std::int64_t rows) {
    return project(context, experts.in[e], context.operand_at(a.gathered, begin * n), a.mlp.in + begin * width,
                   {.rows = rows});
  }));
  activation(context, of_pairs(context, a));
  return for_experts(context, a, [&](std::size_t e, std::int64_t begin, std::int64_t rows) {
    return project(context, experts.down[e], context.operand_at(a.mlp.hidden, begin * a.mlp.ff_dim), a.out + begin * n,
                   {.rows = rows});
  });
}

/// From dy: dout = weight * dy for each pair, and the gradients of the weights, dy . out.
void weigh_gradients(const TrainContext& context, const ExpertActivations& a, const ExpertGradients& g,
                     const float* dy) {
  const std::int64_t n = context.config->model_dim;
  const std::int64_t used = context.config->moe.experts_used;
  context.for_rows(context.rows(), [&](int member, std::int64_t row) {
    for (std::int64_t i = row * used; i < (row + 1) * used; ++i) {
      const std::int64_t pair = a.pair_of[i];
      const float* out = a.out + pair * n;
      void* place = context.operand_at(g.dout, pair * n);
      float* dout = context.operand_row(place, context.scratch_of(member));
      double sum = 0.0;
      for (std::int64_t c = 0; c < n; ++c) {
        const float slope = dy[row * n + c];
        sum += static_cast<double>(slope) * static_cast<double>(out[c]);
        dout[c] = a.weights[i] * slope;
      }
      g.dweights[i] = static_cast<float>(sum);
      context.pack_operand(dout, n, place);
    }
  });
  for_pairs(
      context, a, [&](std::int64_t pair) { zero_operand(context, n, context.operand_at(g.dout, pair * n)); },
      [](int, std::int64_t, std::int64_t) {});
}

/// Through the experts' MLPs, to dgathered.
Status run_experts_backward(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                            const ExpertGradients& g) {
  const std::int64_t n = context.config->model_dim;
  const std::int64_t ff_dim = a.mlp.ff_dim;
  const std::int64_t width = context.mlp_in_dim(ff_dim);
  BF_TRY(for_experts(context, a, [&](std::size_t e, std::int64_t begin, std::int64_t rows) {
    return project_backward(context, experts.down[e], context.operand_at(g.dout, begin * n),
                            context.operand_at(a.mlp.hidden, begin * ff_dim), g.dhidden + begin * ff_dim,
                            {.rows = rows});
  }));
  activation_backward(context, {.forward = of_pairs(context, a), .dhidden = g.dhidden, .din = g.din});
  return for_experts(context, a, [&](std::size_t e, std::int64_t begin, std::int64_t rows) {
    return project_backward(context, experts.in[e], context.operand_at(g.din, begin * width),
                            context.operand_at(a.gathered, begin * n), g.dgathered + begin * n, {.rows = rows});
  });
}

/// The gate's gradient: dy . out * s (1 - s), and dy * s for the shared expert.
void gate_backward(const TrainContext& context, const ExpertActivations& a, const ExpertGradients& g, const float* dy) {
  const std::int64_t n = context.config->model_dim;
  const trace::Scope scope(
      trace::Zone::kDispatch,
      work_of({.rows = context.rows(), .cols = n, .bytes = 3 * sizeof(float), .pass = trace::Pass::kInputGradient}));
  context.for_rows(context.rows(), [&](int member, std::int64_t row) {
    const float s = exact_sigmoid(a.gate_logits[row]);
    const float* out = a.shared_out + row * n;
    void* place = context.operand_at(g.dshared_out, row * n);
    float* dout = context.operand_row(place, context.scratch_of(member));
    double sum = 0.0;
    for (std::int64_t c = 0; c < n; ++c) {
      const float slope = dy[row * n + c];
      sum += static_cast<double>(slope) * static_cast<double>(out[c]);
      dout[c] = s * slope;
    }
    context.pack_operand(dout, n, place);
    g.dgate[row] = static_cast<float>(sum) * s * (1.0f - s);
    context.pack_operand(g.dgate + row, 1, context.operand_at(g.dgate_operand, row));
  });
}

/// Writes dx.
Status backward_shared(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                       const ExpertGradients& g, const ExpertBackwardArgs& args) {
  const bool gated = experts.shared_gate.count > 0;
  if (gated) gate_backward(context, a, g, args.dy);
  const void* dout = gated ? g.dshared_out : args.dy_operand;
  BF_TRY(project_backward(context, experts.shared_down, dout, a.shared.hidden, g.dshared_hidden));
  activation_backward(context, {.forward = a.shared, .dhidden = g.dshared_hidden, .din = g.dshared_in});
  BF_TRY(project_backward(context, experts.shared_in, g.dshared_in, args.x, args.dx));
  if (!gated) return {};
  return project_backward(context, experts.shared_gate, g.dgate_operand, args.x, args.dx,
                          {.accumulate = Accumulate::kYes});
}

}  // namespace

Result<TrainExperts> make_experts(const ModelConfig& config, const Fusion& fusion, const ParameterSet& parameters,
                                  const std::string& prefix) {
  const Join join = fusion.swiglu ? Join::kYes : Join::kNo;
  TrainExperts made;
  BF_ASSIGN_OR_RETURN(made.router, make_projection(parameters, {prefix + "ffn_gate_inp"}, Join::kNo));
  if (config.moe.choice_bias) {
    BF_ASSIGN_OR_RETURN(const Parameter* bias, parameters.find(prefix + "exp_probs_b.bias"));
    made.choice_bias = bias->offset;
  }
  for (int e = 0; e < config.moe.experts; ++e) {
    const std::string gate = fmt::format("{}ffn_gate_exps.{}", prefix, e);
    const std::string up = fmt::format("{}ffn_up_exps.{}", prefix, e);
    BF_ASSIGN_OR_RETURN(Projection in, make_projection(parameters, {gate, up}, join));
    BF_ASSIGN_OR_RETURN(Projection down,
                        make_projection(parameters, {fmt::format("{}ffn_down_exps.{}", prefix, e)}, Join::kNo));
    made.in.push_back(in);
    made.down.push_back(down);
  }
  if (config.moe.shared_ff_dim == 0) return made;
  BF_ASSIGN_OR_RETURN(made.shared_in,
                      make_projection(parameters, {prefix + "ffn_gate_shexp", prefix + "ffn_up_shexp"}, join));
  BF_ASSIGN_OR_RETURN(made.shared_down, make_projection(parameters, {prefix + "ffn_down_shexp"}, Join::kNo));
  if (!config.moe.shared_gate) return made;
  BF_ASSIGN_OR_RETURN(made.shared_gate, make_projection(parameters, {prefix + "ffn_gate_inp_shexp"}, Join::kNo));
  return made;
}

Status forward_experts(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                       const ExpertPass& pass) {
  BF_TRY(project(context, experts.router, pass.x, a.logits));
  {
    const trace::Scope scope(trace::Zone::kDispatch, dispatch_work(context, 2, context.pass));
    route(context, {.logits = a.logits,
                    .choice_bias = context.weight_at(experts.choice_bias),
                    .experts = a.experts,
                    .weights = a.weights});
    pair_up(context, a, pass.tokens);
    if (pass.probabilities != nullptr) add_probabilities(context, a.logits, pass.probabilities);
    gather(context, a, pass.x);
  }
  BF_TRY(run_experts(context, experts, a));
  BF_TRY(forward_shared(context, experts, a, pass));
  add_up(context, a, pass);
  return {};
}

void derive_experts(const TrainContext& context, const ExpertActivations& a, const void* x) {
  {
    const trace::Scope scope(trace::Zone::kDispatch, dispatch_work(context, 2, context.pass));
    gather(context, a, x);
  }
  activation(context, of_pairs(context, a));
  if (a.shared.in != nullptr) activation(context, a.shared);
}

Status backward_experts(const TrainContext& context, const TrainExperts& experts, const ExpertActivations& a,
                        const ExpertGradients& g, const ExpertBackwardArgs& args) {
  const std::int64_t n = context.config->model_dim;
  const std::int64_t used = context.config->moe.experts_used;
  constexpr trace::Pass kPass = trace::Pass::kInputGradient;
  {
    const trace::Scope scope(trace::Zone::kDispatch, dispatch_work(context, 3, kPass));
    weigh_gradients(context, a, g, args.dy);
    const RouterArgs forward{.logits = a.logits, .experts = a.experts, .weights = a.weights};
    route_backward(context, {.forward = forward,
                             .dweights = g.dweights,
                             .balance = args.balance,
                             .dlogits = g.dlogits,
                             .dlogits_operand = g.dlogits_operand});
  }
  BF_TRY(run_experts_backward(context, experts, a, g));
  const bool shared = experts.shared_in.count > 0;
  if (shared) BF_TRY(backward_shared(context, experts, a, g, args));
  BF_TRY(project_backward(context, experts.router, g.dlogits_operand, args.x, args.dx,
                          {.accumulate = shared ? Accumulate::kYes : Accumulate::kNo}));
  const std::int64_t bias = experts.router.parts[0].bias;
  const std::int64_t logits = context.router_dim();
  if (bias != kNoParameter) {
    add_column_sums(context, {.x = g.dlogits, .stride = logits, .count = logits, .offset = bias});
  }
  const trace::Scope scope(trace::Zone::kDispatch, dispatch_work(context, 3, kPass));
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    for (std::int64_t i = row * used; i < (row + 1) * used; ++i) {
      context.kernels->add(g.dgathered + a.pair_of[i] * n, n, args.dx + row * n);
    }
  });
  return {};
}

}  // namespace butterfly
