// The loss of a model in F64, written for clarity: what the gradients of a TrainableTransformer are checked against by
// differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/model/training/passes/transformer_options.h"

namespace butterfly {

using Vector = std::vector<double>;
using Weights = std::map<std::string, Vector>;

class ReferenceLoss {
 public:
  ReferenceLoss(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {
    if (config.position != PositionKind::kRope) return;
    frequencies_[0] = rotary_frequencies(config.rope);
    if (config.has_local_rope()) frequencies_[1] = rotary_frequencies(config.local_rope);
  }

  /// Sum over the counted targets of one sequence, nats.
  double operator()(std::span<const TokenId> tokens, std::span<const TokenId> targets) const {
    std::vector<Vector> x = embed(tokens);
    rows_ += static_cast<double>(x.size());
    for (int layer = 0; layer < config_.layers; ++layer) block(layer, x);
    double loss = 0.0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      if (targets[t].value < 0) continue;
      Vector logits = linear(config_.tied_head ? "token_embd" : "output", norm("output_norm", x[t]));
      for (double& logit : logits) logit = capped(config_.logit_cap, logit * config_.logit_scale);
      double sum = 0.0;
      for (double logit : logits) sum += std::exp(logit);
      loss += std::log(sum) - logits[static_cast<std::size_t>(targets[t].value)];
    }
    return loss;
  }

  /// Of the sequences since the last call.
  double balance_loss(BalanceScope scope) const {
    const auto experts = static_cast<std::size_t>(config_.moe.experts);
    const std::size_t parts = scope == BalanceScope::kModel ? 1 : tokens_.size() / experts;
    const double all = rows_ * config_.expert_layers() / static_cast<double>(parts);
    double loss = 0.0;
    for (std::size_t part = 0; part < parts; ++part) {
      for (std::size_t e = 0; e < experts; ++e) {
        double tokens = 0.0, probability = 0.0;
        for (std::size_t at = part * experts + e; at < tokens_.size(); at += parts * experts) {
          tokens += tokens_[at];
          probability += probabilities_[at];
        }
        loss += tokens / all * (probability / all) / static_cast<double>(parts);
      }
    }
    tokens_.clear();
    probabilities_.clear();
    layers_.clear();
    rows_ = 0.0;
    return loss * config_.moe.experts;
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(config_.model_dim); }

  static double capped(double cap, double x) { return cap == 0.0 ? x : cap * std::tanh(x / cap); }

  std::vector<Vector> embed(std::span<const TokenId> tokens) const {
    std::vector<Vector> x;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto first = weights_.at("token_embd.weight").begin() + tokens[t].value * config_.model_dim;
      x.emplace_back(first, first + config_.model_dim);
      for (double& value : x.back()) value *= config_.embedding_scale;
      if (config_.position != PositionKind::kLearned) continue;
      for (std::size_t i = 0; i < dim(); ++i) x.back()[i] += weights_.at("position_embd.weight")[t * dim() + i];
    }
    return x;
  }

  Vector linear(const std::string& name, const Vector& x) const {
    const Vector& w = weights_.at(name + ".weight");
    const auto bias = weights_.find(name == "token_embd" ? "output.bias" : name + ".bias");
    Vector y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      y[r] = bias == weights_.end() ? 0.0 : bias->second[r];
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }

  /// RMS norm of every `width` elements of x.
  void norm_parts(const std::string& name, std::size_t width, Vector& x) const {
    const Vector& weight = weights_.at(name + ".weight");
    for (std::size_t first = 0; first < x.size(); first += width) {
      double square = 0.0;
      for (std::size_t i = 0; i < width; ++i) square += x[first + i] * x[first + i] / static_cast<double>(width);
      const double inverse = 1.0 / std::sqrt(square + static_cast<double>(config_.norm_epsilon));
      for (std::size_t i = 0; i < width; ++i) x[first + i] *= inverse * weight[i];
    }
  }

  Vector norm(const std::string& name, const Vector& x) const {
    double mean = 0.0;
    if (config_.norm == NormKind::kLayer) {
      for (double v : x) mean += v / static_cast<double>(x.size());
    }
    double square = 0.0;
    for (double v : x) square += (v - mean) * (v - mean) / static_cast<double>(x.size());
    const double inverse = 1.0 / std::sqrt(square + static_cast<double>(config_.norm_epsilon));
    const auto bias = weights_.find(name + ".bias");
    Vector y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = (x[i] - mean) * inverse * weights_.at(name + ".weight")[i];
      if (bias != weights_.end()) y[i] += bias->second[i];
    }
    return y;
  }

  void rotate(int layer, Vector& x, std::size_t position) const {
    const int kind = config_.rope_of(layer);
    if (kind == kNoRope) return;
    const RopeConfig& rope = kind == kMainRope ? config_.rope : config_.local_rope;
    const std::vector<double>& frequencies = frequencies_[kind == kMainRope ? 0 : 1];
    const std::size_t pairs = frequencies.size();
    const auto head_dim = static_cast<std::size_t>(config_.head_dim);
    for (std::size_t head = 0; head < x.size(); head += head_dim) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const bool adjacent = rope.pairs == RopePairs::kAdjacent;
        double& a = x[head + (adjacent ? 2 * i : i)];
        double& b = x[head + (adjacent ? 2 * i + 1 : i + pairs)];
        const double angle = static_cast<double>(position) * frequencies[i];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = rope.magnitude * (a * std::sin(angle) + b * std::cos(angle));
        a = rope.magnitude * turned;
      }
    }
  }

  double score_scale() const {
    return config_.attention_scale > 0 ? config_.attention_scale
                                       : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  }

  Vector attend(int layer, const Vector& q, const std::vector<Vector>& k, const std::vector<Vector>& v,
                std::size_t t) const {
    const auto head_dim = static_cast<std::size_t>(config_.head_dim);
    const auto group = static_cast<std::size_t>(config_.heads / config_.kv_heads);
    const auto window = static_cast<std::size_t>(config_.window_of(layer));
    const std::size_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
    Vector mixed(q.size(), 0.0);
    for (std::size_t head = 0; head < static_cast<std::size_t>(config_.heads); ++head) {
      const std::size_t q0 = head * head_dim;
      const std::size_t k0 = head / group * head_dim;
      Vector p(t + 1, 0.0);
      double sum = 0.0;
      for (std::size_t s = first; s <= t; ++s) {
        for (std::size_t i = 0; i < head_dim; ++i) p[s] += q[q0 + i] * k[s][k0 + i];
        p[s] = std::exp(capped(config_.attention_cap, p[s] * score_scale()));
        sum += p[s];
      }
      for (std::size_t s = first; s <= t; ++s) {
        for (std::size_t i = 0; i < head_dim; ++i) mixed[q0 + i] += p[s] / sum * v[s][k0 + i];
      }
    }
    return mixed;
  }

  Vector input_of(const std::string& name, const Vector& x) const {
    return config_.norm_place == NormPlace::kOutput ? x : norm(name, x);
  }

  void add_output(const std::string& norm_name, Vector y, Vector& x) const {
    if (config_.norms_outputs()) y = norm(norm_name, y);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += config_.residual_scale * y[i];
  }

  void block(int layer, std::vector<Vector>& x) const {
    const std::string name = "blk." + std::to_string(layer) + ".";
    std::vector<Vector> q, k, v, inputs;
    const bool head = config_.qk_norm == QkNorm::kHead;
    for (std::size_t t = 0; t < x.size(); ++t) {
      inputs.push_back(input_of(name + "attn_norm", x[t]));
      q.push_back(linear(name + "attn_q", inputs[t]));
      k.push_back(linear(name + "attn_k", inputs[t]));
      v.push_back(linear(name + "attn_v", inputs[t]));
      if (config_.qk_norm != QkNorm::kNone) {
        norm_parts(name + "attn_q_norm", head ? static_cast<std::size_t>(config_.head_dim) : q[t].size(), q[t]);
        norm_parts(name + "attn_k_norm", head ? static_cast<std::size_t>(config_.head_dim) : k[t].size(), k[t]);
      }
      rotate(layer, q.back(), t);
      rotate(layer, k.back(), t);
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector ffn_input;
      if (config_.parallel_block) ffn_input = config_.shared_norm ? inputs[t] : norm(name + "ffn_norm", x[t]);
      add_output(name + "post_attention_norm", linear(name + "attn_output", attend(layer, q[t], k, v, t)), x[t]);
      if (!config_.parallel_block) ffn_input = input_of(name + "ffn_norm", x[t]);
      const Vector y = config_.has_experts(layer)
                           ? experts(name, ffn_input)
                           : linear(name + "ffn_down", hidden(name + "ffn_gate", name + "ffn_up", ffn_input));
      add_output(name + "post_ffw_norm", y, x[t]);
    }
  }

  double activate(double x) const {
    switch (config_.activation) {
      case Activation::kSilu:
        return x / (1.0 + std::exp(-x));
      case Activation::kGeluTanh:
        return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::kRelu:
        return std::max(x, 0.0);
      case Activation::kGeluErf:
        break;
    }
    return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
  }

  Vector hidden(const std::string& gate_name, const std::string& up_name, const Vector& input) const {
    Vector up = linear(up_name, input);
    if (config_.mlp == MlpKind::kPlain) {
      for (double& u : up) u = activate(u);
      return up;
    }
    const Vector gate = linear(gate_name, input);
    for (std::size_t i = 0; i < up.size(); ++i) up[i] *= activate(gate[i]);
    return up;
  }

  static Vector softmax(Vector x) {
    double sum = 0.0;
    for (double& value : x) sum += value = std::exp(value);
    for (double& value : x) value /= sum;
    return x;
  }

  /// The `count` best by `value`, of equals the first.
  static std::vector<std::size_t> best(const Vector& value, std::size_t count) {
    std::vector<std::size_t> order(value.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return value[a] > value[b]; });
    order.resize(count);
    return order;
  }

  /// Experts of the groups that are left out are compared by less than all others.
  void leave_out_groups(Vector& compared) const {
    const MoeConfig& moe = config_.moe;
    const std::size_t size = compared.size() / static_cast<std::size_t>(moe.groups);
    Vector groups;
    for (std::size_t first = 0; first < compared.size(); first += size) {
      Vector group(compared.begin() + static_cast<std::ptrdiff_t>(first),
                   compared.begin() + static_cast<std::ptrdiff_t>(first + size));
      std::ranges::sort(group, std::greater<>());
      groups.push_back(moe.group_score == MoeConfig::GroupScore::kTwoLargest ? group[0] + group[1] : group[0]);
    }
    const auto kept = best(groups, static_cast<std::size_t>(moe.groups_used));
    for (std::size_t e = 0; e < compared.size(); ++e) {
      if (std::ranges::find(kept, e / size) == kept.end()) compared[e] = -1e30;
    }
  }

  Vector experts(const std::string& name, const Vector& x) const {
    const MoeConfig& moe = config_.moe;
    const Vector logits = linear(name + "ffn_gate_inp", x);
    Vector scores = logits;
    if (moe.scores == MoeConfig::Scores::kSoftmax) scores = softmax(logits);
    if (moe.scores == MoeConfig::Scores::kSigmoid) {
      for (double& score : scores) score = 1.0 / (1.0 + std::exp(-score));
    }
    Vector compared = scores;
    if (moe.choice_bias) {
      for (std::size_t e = 0; e < compared.size(); ++e) compared[e] += weights_.at(name + "exp_probs_b.bias")[e];
    }
    leave_out_groups(compared);
    const auto chosen = best(compared, static_cast<std::size_t>(moe.experts_used));
    Vector weight;
    for (const std::size_t e : chosen) weight.push_back(scores[e]);
    if (moe.scores == MoeConfig::Scores::kSoftmaxOfChosen) weight = softmax(weight);
    const double sum = std::accumulate(weight.begin(), weight.end(), static_cast<double>(moe.renormalise_epsilon));
    count(name, chosen, softmax(logits));
    Vector y(x.size(), 0.0);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const std::string of = "_exps." + std::to_string(chosen[i]);
      const Vector out = linear(name + "ffn_down" + of, hidden(name + "ffn_gate" + of, name + "ffn_up" + of, x));
      const double factor = weight[i] / (moe.renormalise ? sum : 1.0) * moe.weight_scale;
      for (std::size_t c = 0; c < y.size(); ++c) y[c] += factor * out[c];
    }
    if (moe.shared_ff_dim == 0) return y;
    const Vector shared = linear(name + "ffn_down_shexp", hidden(name + "ffn_gate_shexp", name + "ffn_up_shexp", x));
    const double gate = moe.shared_gate ? 1.0 / (1.0 + std::exp(-linear(name + "ffn_gate_inp_shexp", x)[0])) : 1.0;
    for (std::size_t c = 0; c < y.size(); ++c) y[c] += gate * shared[c];
    return y;
  }

  /// Layers with experts count one behind the other, in the order in which they are met.
  void count(const std::string& layer, const std::vector<std::size_t>& chosen, const Vector& probabilities) const {
    const std::size_t first = layers_.emplace(layer, layers_.size()).first->second * probabilities.size();
    tokens_.resize(std::max(tokens_.size(), first + probabilities.size()));
    probabilities_.resize(tokens_.size());
    for (const std::size_t e : chosen) tokens_[first + e] += 1.0;
    for (std::size_t e = 0; e < probabilities.size(); ++e) probabilities_[first + e] += probabilities[e];
  }

  const ModelConfig& config_;
  const Weights& weights_;
  std::vector<double> frequencies_[2];
  mutable Vector tokens_, probabilities_;  // by layer with experts, then by expert: sums over rows
  mutable std::map<std::string, std::size_t> layers_;
  mutable double rows_ = 0.0;
};

}  // namespace butterfly
