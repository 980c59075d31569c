// The weights that training changes, and everything that is as long as they are: one flat fp32 array each, 64-byte
// aligned, in which every parameter is a named range. Flat, because then a bucket of a reduction, a checkpoint and a
// hash are ranges of memory. The order is that of the forward pass (embedding, blocks, final norm, head), so gradients
// become final from the end to the beginning. Not thread-safe; ranges may be used by several threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/range.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"

namespace butterfly {

/// Whether other processes of this host can be given the gradients to read.
enum class GradientMemory : std::uint8_t { kPrivate, kShared };

/// Whether a flat array has memory for all of it, or for what is written to until it is released: for a rank that holds
/// a part of it, or has all of it for a moment at a time. Of weights, kSparse come and go, beside an array of what this
/// process keeps; with kPart it computes with what it keeps, where that is.
enum class Residency : std::uint8_t { kWhole, kSparse, kPart };

struct ParameterMemory {
  GradientMemory sharing = GradientMemory::kPrivate;  // of whole gradients
  Residency weights = Residency::kWhole;
  Residency gradients = Residency::kWhole;
};

/// Weight decay is for matrices; norms and biases have none.
enum class DecayGroup : std::uint8_t { kDecayed, kNotDecayed };

struct Parameter {
  std::string name{};  // canonical: weights.h
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t offset = 0;  // first element in the flat arrays, a multiple of 16
  DecayGroup decay = DecayGroup::kDecayed;
  bool frozen = false;  // declared: no update, and no complaint about it
  std::int64_t size() const { return rows * cols; }
};

/// Elements [begin, end) of the flat arrays.
using ParameterRange = IndexRange;

class ParameterSet {
 public:
  /// All weights of the model, zero; a tied head is its embedding. Gradients that cannot be had in shared memory are
  /// private. Errors: those of validate(), kNoMemory.
  static Result<ParameterSet> create(const ModelConfig& config, const ParameterMemory& memory = {});

  const std::vector<Parameter>& list() const { return list_; }
  /// Errors: kNotFound naming the parameter.
  Result<const Parameter*> find(const std::string& name) const;
  /// Patterns are name prefixes or whole names. Errors: kNotFound for one that matches nothing.
  Status freeze(const std::vector<std::string>& patterns);

  std::int64_t padded_size() const { return padded_size_; }  // elements of each flat array; gaps are zero
  std::int64_t parameter_count() const;                      // without gaps

  std::span<float> weights();
  std::span<const float> weights() const;
  std::span<float> gradients();
  std::span<const float> gradients() const;
  int gradients_descriptor() const { return gradients_.descriptor(); }  // of their memory; -1: private
  std::span<float> weight(const Parameter& parameter) { return part(weights(), parameter); }
  std::span<float> gradient(const Parameter& parameter) { return part(gradients(), parameter); }

  /// Where this process keeps what it has of the weights: weights() themselves, or where those are sparse, and come and
  /// go as they are needed, an array of its own.
  std::span<float> own_weights() { return own_.bytes() > 0 ? floats_of(own_) : weights(); }
  std::span<const float> own_weights() const { return own_.bytes() > 0 ? floats_of(own_) : weights(); }

  /// Of sparse arrays: the whole pages of the range are zero and take no memory until they are written to. Of others:
  /// nothing.
  void release_weights(ParameterRange range) { release(weights_, range); }
  void release_own_weights(ParameterRange range) { release(own_.bytes() > 0 ? own_ : weights_, range); }
  void release_gradients(ParameterRange range) { release(gradients_, range); }
  /// Elements of a page of sparse weights.
  std::int64_t weight_page() const { return static_cast<std::int64_t>(weights_.page_bytes() / sizeof(float)); }

  /// This parameter's part of a flat array with a value for each weight.
  template <typename T>
  static std::span<T> part(std::span<T> all, const Parameter& parameter) {
    return all.subspan(static_cast<std::size_t>(parameter.offset), static_cast<std::size_t>(parameter.size()));
  }

  /// SHA-256 of all weights, lower-case hex.
  std::string hash() const;

 private:
  static void release(AlignedBuffer& array, ParameterRange range);
  static std::span<float> floats_of(const AlignedBuffer& array) {
    return {reinterpret_cast<float*>(array.data()), static_cast<std::size_t>(array.bytes() / sizeof(float))};
  }

  std::vector<Parameter> list_;
  std::int64_t padded_size_ = 0;
  AlignedBuffer weights_, gradients_, own_;
  trace::Held weights_held_, gradients_held_;
};

}  // namespace butterfly
