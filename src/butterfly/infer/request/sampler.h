// From logits to the next token. The random number depends on (seed, sample index, position) alone, so a text does not
// change when it is replayed, split or batched with others. Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"

namespace butterfly {

struct SamplingOptions {
  float temperature = 0.0f;     // 0: the most likely token
  int top_k = 0;                // keep the k most likely; 0: all
  float top_p = 1.0f;           // keep the smallest set with at least this probability; 1: all
  float min_p = 0.0f;           // drop tokens below this fraction of the best one's probability; 0: none
  float repeat_penalty = 1.0f;  // divides positive, multiplies negative logits of tokens seen; 1: none
  int repeat_window = 64;       // tokens that repeat_penalty looks back
  std::uint64_t seed = 0;
};

/// Errors: kInvalidArgument naming the option and its value.
Status validate(const SamplingOptions& options);

/// Uniform in [0, 1), 24 bits, from a counter-based generator (Philox 4x32, 10 rounds,
/// https://doi.org/10.1145/2063384.2063405) keyed by `seed` with the counter (sample, position).
float uniform_at(std::uint64_t seed, std::uint64_t sample, std::uint64_t position);

/// What is drawn for: sample `index` of a request, the token at `position`.
struct SampleKey {
  std::uint64_t index = 0;
  std::uint64_t position = 0;
};

/// logits[vocab] may be changed. Ties go to the lowest id. `history`: the text so far. NaN logits are never chosen.
TokenId sample(std::span<float> logits, const SamplingOptions& options, std::span<const TokenId> history,
               SampleKey key);

}  // namespace butterfly
