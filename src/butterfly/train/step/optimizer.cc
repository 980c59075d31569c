#include "butterfly/train/step/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "butterfly/kernel/training/training_dispatch.h"
#include "butterfly/kernel/training/training_kernels.h"
#include "butterfly/trace/held.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/train/sharding/share_numbers.h"

namespace butterfly {
namespace {

struct Chunk {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool decayed = false;
  std::size_t number = 0;  // of all that are not frozen
  bool counted = true;     // in the norm
};

std::vector<Chunk> chunks_of(const ParameterSet& parameters) {
  std::vector<Chunk> chunks;
  for (const UpdateChunk& chunk : update_chunks(parameters)) {
    if (chunk.frozen) continue;
    chunks.push_back(
        {.begin = chunk.range.begin, .size = chunk.range.size(), .decayed = chunk.decayed, .number = chunks.size()});
  }
  return chunks;
}

/// Adds up `values` in a binary tree over their indices; they are lost.
double tree_sum(std::span<double> values) {
  for (std::size_t distance = 1; distance < values.size(); distance *= 2) {
    for (std::size_t i = 0; i + distance < values.size(); i += 2 * distance) values[i] += values[i + distance];
  }
  return values.empty() ? 0.0 : values[0];
}

class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(const OptimizerConfig& config, Isa isa, ParameterSet& parameters, ThreadTeam& team)
      : config_(config),
        kernels_(training_kernels(isa)),
        parameters_(parameters),
        team_(team),
        chunks_(chunks_of(parameters)),
        partial_sums_(chunks_.size()) {
    count_elements();
  }

  void own(const std::vector<ParameterRange>& held, const std::vector<ParameterRange>& counted) override {
    chunks_ = chunks_of(parameters_);
    const auto is_in = [](const std::vector<ParameterRange>& ranges, const Chunk& chunk) {
      const auto after = std::ranges::upper_bound(ranges, chunk.begin, {}, &ParameterRange::begin);
      return after != ranges.begin() && std::prev(after)->end > chunk.begin;
    };
    std::erase_if(chunks_, [&](const Chunk& chunk) { return !is_in(held, chunk); });
    for (Chunk& chunk : chunks_) chunk.counted = is_in(counted, chunk);
    shared_ = true;
    count_elements();
    release_moments(held);
  }

  Result<double> gradient_norm(Collectives* collectives) override {
    const trace::Scope scope(trace::Zone::kGradientNorm, work(sizeof(float)));
    const float* gradients = parameters_.gradients().data();
    std::ranges::fill(partial_sums_, 0.0);
    each_chunk([&](const Chunk& chunk) {
      if (chunk.counted) partial_sums_[chunk.number] = kernels_.sum_of_squares(gradients + chunk.begin, chunk.size);
    });
    if (shared_) BF_TRY(share_numbers(collectives, partial_sums_));
    return std::sqrt(tree_sum(partial_sums_));
  }

  void update(double rate, double gradient_scale) override {
    ++updates_;
    const trace::Scope scope(trace::Zone::kUpdate, work(update_bytes()));
    apply(static_cast<float>(rate), static_cast<float>(gradient_scale));
  }

  std::int64_t updates() const override { return updates_; }
  void set_updates(std::int64_t updates) override { updates_ = updates; }

  std::vector<std::span<float>> moments() override {
    std::vector<std::span<float>> spans;
    for (const AlignedBuffer& moment : moments_) {
      spans.emplace_back(reinterpret_cast<float*>(moment.data()), static_cast<std::size_t>(parameters_.padded_size()));
    }
    return spans;
  }

  Status allocate_moments(int count, Residency residency) {
    for (int i = 0; i < count; ++i) {
      const auto bytes = static_cast<std::uint64_t>(parameters_.padded_size()) * sizeof(float);
      const bool whole = residency == Residency::kWhole;
      BF_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                          whole ? AlignedBuffer::create(bytes) : AlignedBuffer::create_sparse(bytes, PageKind::kSmall));
      if (whole) std::memset(buffer.data(), 0, bytes);
      moments_.push_back(std::move(buffer));
      moments_held_.emplace_back(trace::Owner::kOptimizer, whole ? bytes : 0);
    }
    return {};
  }

 protected:
  virtual void apply(float rate, float gradient_scale) = 0;
  /// Read and written for one element.
  virtual std::uint64_t update_bytes() const = 0;

  /// work(chunk) on the team.
  template <typename Work>
  void each_chunk(const Work& work) {
    team_.run([&](int member) {
      const WorkRange range = split_work(static_cast<long>(chunks_.size()), member, team_.size());
      for (long i = range.begin; i < range.end; ++i) {
        work(chunks_[static_cast<std::size_t>(i)]);
      }
    });
  }

  float* moment(std::size_t index) const { return reinterpret_cast<float*>(moments_[index].data()); }
  float decay_of(const Chunk& chunk) const { return chunk.decayed ? static_cast<float>(config_.weight_decay) : 0.0f; }

  const OptimizerConfig config_;
  const TrainingKernels& kernels_;
  ParameterSet& parameters_;
  ThreadTeam& team_;

 private:
  void count_elements() {
    elements_ = 0;
    for (const Chunk& chunk : chunks_) elements_ += chunk.size;
  }

  void release_moments(const std::vector<ParameterRange>& owned) {
    std::int64_t begin = 0, held = 0;
    const auto release = [&](std::int64_t end) {
      for (AlignedBuffer& moment : moments_) {
        if (!moment.is_sparse()) continue;
        moment.release(static_cast<std::uint64_t>(begin) * sizeof(float),
                       static_cast<std::uint64_t>(end) * sizeof(float));
      }
    };
    for (const ParameterRange& range : owned) {
      release(range.begin);
      begin = range.end;
      held += range.size();
    }
    release(parameters_.padded_size());
    for (trace::Held& moment : moments_held_) {
      moment = trace::Held(trace::Owner::kOptimizer, static_cast<std::uint64_t>(held) * sizeof(float));
    }
  }

  trace::Work work(std::uint64_t bytes_each) const {
    return {.number = static_cast<std::uint32_t>(chunks_.size()),
            .bytes = static_cast<std::uint64_t>(elements_) * bytes_each};
  }

  std::vector<Chunk> chunks_;
  std::int64_t elements_ = 0;         // of all chunks
  std::vector<double> partial_sums_;  // of every chunk that is not frozen
  bool shared_ = false;               // other ranks have the rest
  std::vector<AlignedBuffer> moments_;
  std::vector<trace::Held> moments_held_;
  std::int64_t updates_ = 0;

 protected:
  double correction(double beta) const { return 1.0 / (1.0 - std::pow(beta, static_cast<double>(updates_))); }
};

class Adamw : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

 protected:
  AdamwArgs arguments(float rate, float gradient_scale) const {
    return {.rate = rate,
            .beta1 = static_cast<float>(config_.beta1),
            .beta2 = static_cast<float>(config_.beta2),
            .epsilon = static_cast<float>(config_.epsilon),
            .correction1 = static_cast<float>(correction(config_.beta1)),
            .correction2 = static_cast<float>(correction(config_.beta2)),
            .gradient_scale = gradient_scale};
  }
  std::uint64_t update_bytes() const override { return 7 * sizeof(float); }  // all but the gradient are written, too

  void apply(float rate, float gradient_scale) override {
    const AdamwArgs common = arguments(rate, gradient_scale);
    const float* gradients = parameters_.gradients().data();
    float* weights = parameters_.own_weights().data();
    each_chunk([&](const Chunk& chunk) {
      AdamwArgs args = common;
      args.decay = decay_of(chunk);
      const std::int64_t at = chunk.begin;
      kernels_.adamw(args, chunk.size, gradients + at, weights + at, moment(0) + at, moment(1) + at);
    });
  }
};

/// The same formula in a pass over memory for each of its lines: what fusion saves is the difference.
class UnfusedAdamw final : public Adamw {
 public:
  using Adamw::Adamw;

 protected:
  std::uint64_t update_bytes() const override { return 12 * sizeof(float); }
  void apply(float rate, float gradient_scale) override {
    const AdamwArgs args = arguments(rate, gradient_scale);
    const float* gradients = parameters_.gradients().data();
    float* weights = parameters_.own_weights().data();
    each_element([&](std::int64_t i, float) {
      moment(0)[i] = args.beta1 * moment(0)[i] + (1.0f - args.beta1) * (gradients[i] * args.gradient_scale);
    });
    each_element([&](std::int64_t i, float) {
      const float gradient = gradients[i] * args.gradient_scale;
      moment(1)[i] = args.beta2 * moment(1)[i] + (1.0f - args.beta2) * (gradient * gradient);
    });
    each_element([&](std::int64_t i, float decay) { weights[i] -= args.rate * decay * weights[i]; });
    each_element([&](std::int64_t i, float) {
      const float root = std::sqrt(moment(1)[i] * args.correction2) + args.epsilon;
      weights[i] -= args.rate * (moment(0)[i] * args.correction1 / root);
    });
  }

 private:
  template <typename Work>
  void each_element(const Work& work) {
    each_chunk([&](const Chunk& chunk) {
      const float decay = decay_of(chunk);
      for (std::int64_t i = chunk.begin; i < chunk.begin + chunk.size; ++i) work(i, decay);
    });
  }
};

class Sgd final : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

 protected:
  std::uint64_t update_bytes() const override { return (config_.momentum > 0 ? 5 : 3) * sizeof(float); }
  void apply(float rate, float gradient_scale) override {
    const auto momentum = static_cast<float>(config_.momentum);
    const float* gradients = parameters_.gradients().data();
    float* weights = parameters_.own_weights().data();
    each_chunk([&](const Chunk& chunk) {
      const std::int64_t at = chunk.begin;
      float* buffer = config_.momentum > 0 ? moment(0) + at : nullptr;
      kernels_.sgd(rate, momentum, decay_of(chunk), gradient_scale, chunk.size, gradients + at, weights + at, buffer);
    });
  }
};

template <typename Kind>
Result<std::unique_ptr<Optimizer>> make(int moments, Residency residency, const OptimizerConfig& config, Isa isa,
                                        ParameterSet& parameters, ThreadTeam& team) {
  auto optimizer = std::make_unique<Kind>(config, isa, parameters, team);
  BF_TRY(optimizer->allocate_moments(moments, residency));
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

}  // namespace

Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config, const Fusion& fusion, Isa isa,
                                                  ParameterSet& parameters, ThreadTeam& team, Residency moments) {
  if (config.kind == OptimizerKind::kSgd) {
    return make<Sgd>(config.momentum > 0 ? 1 : 0, moments, config, isa, parameters, team);
  }
  if (fusion.adamw) return make<Adamw>(2, moments, config, isa, parameters, team);
  return make<UnfusedAdamw>(2, moments, config, isa, parameters, team);
}

}  // namespace butterfly
