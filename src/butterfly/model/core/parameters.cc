#include "butterfly/model/core/parameters.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "butterfly/base/check.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/machine/usage/memory_check.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {
namespace {

constexpr std::int64_t kAlignedElements = 16;  // one 64-byte line

/// Weights that one matmul may cover lie behind one another: all matrices of a group, then all its biases.
int group_of(std::string_view name) {
  constexpr std::array<std::string_view, 5> kGrouped{".attn_q.", ".attn_k.", ".attn_v.", ".ffn_gate.", ".ffn_up."};
  for (std::size_t i = 0; i < kGrouped.size(); ++i) {
    if (name.find(kGrouped[i]) != std::string_view::npos) return i < 3 ? 1 : 2;
  }
  return 0;
}

/// Moves the biases of each run of grouped weights behind its matrices.
void order_groups(std::vector<WeightInfo>& weights) {
  for (auto first = weights.begin(); first != weights.end();) {
    const int group = group_of(first->name);
    const auto last = std::find_if(first, weights.end(), [&](const auto& w) { return group_of(w.name) != group; });
    if (group != 0) std::stable_partition(first, last, [](const auto& w) { return w.rows > 1; });
    first = last;
  }
}

Result<AlignedBuffer> zeroed(std::int64_t elements) {
  BF_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                      AlignedBuffer::create(static_cast<std::uint64_t>(elements) * sizeof(float)));
  std::memset(buffer.data(), 0, buffer.bytes());
  return buffer;
}

Result<AlignedBuffer> zero_array(std::int64_t elements, Residency residency, PageKind pages) {
  if (residency == Residency::kWhole) return zeroed(elements);
  return AlignedBuffer::create_sparse(static_cast<std::uint64_t>(elements) * sizeof(float), pages);
}

/// Zero.
Result<AlignedBuffer> gradient_buffer(std::int64_t elements, const ParameterMemory& memory) {
  const bool whole = memory.gradients == Residency::kWhole;
  if (!whole || memory.sharing == GradientMemory::kPrivate)
    return zero_array(elements, memory.gradients, PageKind::kSmall);
  auto shared = AlignedBuffer::create_shared(static_cast<std::uint64_t>(elements) * sizeof(float));
  return shared ? std::move(shared) : zeroed(elements);
}

}  // namespace

Result<ParameterSet> ParameterSet::create(const ModelConfig& config, const ParameterMemory& memory) {
  BF_TRY(validate(config));
  std::vector<WeightInfo> weights =
      expected_weights(config, {.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = false});
  for (WeightInfo& weight : expected_weights(config, {.head = true})) {
    if (weight.name != "token_embd.weight") weights.push_back(std::move(weight));
  }
  order_groups(weights);
  ParameterSet set;
  for (const WeightInfo& weight : weights) {
    set.list_.push_back({.name = weight.name,
                         .rows = weight.rows,
                         .cols = weight.cols,
                         .offset = set.padded_size_,
                         .decay = weight.rows > 1 ? DecayGroup::kDecayed : DecayGroup::kNotDecayed,
                         // It counts in choosing experts alone, which no gradient passes.
                         .frozen = weight.name.ends_with(".exp_probs_b.bias")});
    const std::int64_t end = set.padded_size_ + weight.rows * weight.cols;
    set.padded_size_ = (end + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  }
  const std::uint64_t array_bytes = static_cast<std::uint64_t>(set.padded_size_) * sizeof(float);
  const std::uint64_t whole_weights = memory.weights == Residency::kWhole ? array_bytes : 0;
  const std::uint64_t whole_gradients = memory.gradients == Residency::kWhole ? array_bytes : 0;
  BF_TRY(check_memory(whole_weights + whole_gradients, "weights and gradients"));
  BF_ASSIGN_OR_RETURN(set.weights_, zero_array(set.padded_size_, memory.weights, PageKind::kHuge));
  if (memory.weights == Residency::kSparse) {
    BF_ASSIGN_OR_RETURN(set.own_, AlignedBuffer::create_sparse(array_bytes, PageKind::kSmall));
  }
  BF_ASSIGN_OR_RETURN(set.gradients_, gradient_buffer(set.padded_size_, memory));
  set.weights_held_ = trace::Held(trace::Owner::kWeights, whole_weights);
  set.gradients_held_ = trace::Held(trace::Owner::kGradients, whole_gradients);
  return set;
}

void ParameterSet::release(AlignedBuffer& array, ParameterRange range) {
  if (!array.is_sparse() || array.bytes() == 0) return;
  array.release(static_cast<std::uint64_t>(range.begin) * sizeof(float),
                static_cast<std::uint64_t>(range.end) * sizeof(float));
}

Result<const Parameter*> ParameterSet::find(const std::string& name) const {
  for (const Parameter& parameter : list_) {
    if (parameter.name == name) return &parameter;
  }
  return make_error(ErrorCode::kNotFound, "the model has no parameter {}", name);
}

Status ParameterSet::freeze(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (Parameter& parameter : list_) {
      if (pattern.empty() || !parameter.name.starts_with(pattern)) continue;
      parameter.frozen = matched = true;
    }
    if (!matched) {
      return make_error(ErrorCode::kNotFound, "\"{}\" freezes nothing: none of the {} parameters begins so (first: {})",
                        pattern, list_.size(), list_.front().name);
    }
  }
  return {};
}

std::int64_t ParameterSet::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : list_) count += parameter.size();
  return count;
}

std::span<float> ParameterSet::weights() {
  return {reinterpret_cast<float*>(weights_.data()), static_cast<std::size_t>(padded_size_)};
}
std::span<const float> ParameterSet::weights() const {
  return {reinterpret_cast<const float*>(weights_.data()), static_cast<std::size_t>(padded_size_)};
}
std::span<float> ParameterSet::gradients() {
  return {reinterpret_cast<float*>(gradients_.data()), static_cast<std::size_t>(padded_size_)};
}
std::span<const float> ParameterSet::gradients() const {
  return {reinterpret_cast<const float*>(gradients_.data()), static_cast<std::size_t>(padded_size_)};
}

std::string ParameterSet::hash() const {
  Sha256Hasher hash;
  hash.add(std::as_bytes(weights()));
  const auto text = hash.finish();
  BF_CHECK(text.has_value(), "this library needs an OpenSSL with SHA-256");
  return *text;
}

}  // namespace butterfly
