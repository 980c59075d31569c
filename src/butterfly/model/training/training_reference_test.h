// The loss of a model in F64, written for clarity: what the gradients of a TrainableTransformer are checked against by
// differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/core/rotary.h"

namespace butterfly {

using Vector = std::vector<double>;
using Weights = std::map<std::string, Vector>;

class ReferenceLoss {
 public:
  ReferenceLoss(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {
    if (config.position == PositionKind::kRope) frequencies_ = rotary_frequencies(config.rope);
  }

  /// Sum over the counted targets of one sequence, nats.
  double operator()(std::span<const TokenId> tokens, std::span<const TokenId> targets) const {
    std::vector<Vector> x = embed(tokens);
    for (int layer = 0; layer < config_.layers; ++layer) block("blk." + std::to_string(layer) + ".", x);
    double loss = 0.0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      if (targets[t].value < 0) continue;
      const Vector logits = linear(config_.tied_head ? "token_embd" : "output", norm("output_norm", x[t]));
      double sum = 0.0;
      for (double logit : logits) sum += std::exp(logit);
      loss += std::log(sum) - logits[static_cast<std::size_t>(targets[t].value)];
    }
    return loss;
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(config_.model_dim); }

  std::vector<Vector> embed(std::span<const TokenId> tokens) const {
    std::vector<Vector> x;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto first = weights_.at("token_embd.weight").begin() + tokens[t].value * config_.model_dim;
      x.emplace_back(first, first + config_.model_dim);
      if (config_.position != PositionKind::kLearned) continue;
      for (std::size_t i = 0; i < dim(); ++i) x.back()[i] += weights_.at("position_embd.weight")[t * dim() + i];
    }
    return x;
  }

  Vector linear(const std::string& name, const Vector& x) const {
    const Vector& w = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Vector y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      y[r] = bias == weights_.end() ? 0.0 : bias->second[r];
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
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

  void rotate(Vector& x, std::size_t position) const {
    const std::size_t pairs = frequencies_.size();
    const auto head_dim = static_cast<std::size_t>(config_.head_dim);
    for (std::size_t head = 0; head < x.size(); head += head_dim) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const bool adjacent = config_.rope.pairs == RopePairs::kAdjacent;
        double& a = x[head + (adjacent ? 2 * i : i)];
        double& b = x[head + (adjacent ? 2 * i + 1 : i + pairs)];
        const double angle = static_cast<double>(position) * frequencies_[i];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  Vector attend(const Vector& q, const std::vector<Vector>& k, const std::vector<Vector>& v, std::size_t t) const {
    const auto head_dim = static_cast<std::size_t>(config_.head_dim);
    const auto group = static_cast<std::size_t>(config_.heads / config_.kv_heads);
    Vector mixed(q.size(), 0.0);
    for (std::size_t head = 0; head < static_cast<std::size_t>(config_.heads); ++head) {
      const std::size_t q0 = head * head_dim;
      const std::size_t k0 = head / group * head_dim;
      Vector p(t + 1, 0.0);
      double sum = 0.0;
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < head_dim; ++i) p[s] += q[q0 + i] * k[s][k0 + i];
        p[s] = std::exp(p[s] / std::sqrt(static_cast<double>(head_dim)));
        sum += p[s];
      }
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < head_dim; ++i) mixed[q0 + i] += p[s] / sum * v[s][k0 + i];
      }
    }
    return mixed;
  }

  void block(const std::string& name, std::vector<Vector>& x) const {
    std::vector<Vector> q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Vector inner = norm(name + "attn_norm", x[t]);
      q.push_back(linear(name + "attn_q", inner));
      k.push_back(linear(name + "attn_k", inner));
      v.push_back(linear(name + "attn_v", inner));
      rotate(q.back(), t);
      rotate(k.back(), t);
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(linear(name + "attn_output", attend(q[t], k, v, t)), x[t]);
      add(linear(name + "ffn_down", hidden(name, norm(name + "ffn_norm", x[t]))), x[t]);
    }
  }

  Vector hidden(const std::string& name, const Vector& inner) const {
    Vector up = linear(name + "ffn_up", inner);
    if (config_.mlp == MlpKind::kPlain) {
      for (double& u : up) u = 0.5 * u * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u)));
      return up;
    }
    const Vector gate = linear(name + "ffn_gate", inner);
    for (std::size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1.0 + std::exp(-gate[i]));
    return up;
  }

  static void add(const Vector& from, Vector& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  const ModelConfig& config_;
  const Weights& weights_;
  std::vector<double> frequencies_;
};

}  // namespace butterfly
