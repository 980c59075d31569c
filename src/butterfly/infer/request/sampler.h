// From logits to the next token. The random number depends on (seed, sample index, position) alone, so a text does not
// change when it is replayed, split or batched with others. A Sampler belongs to one request and one thread; several
// may share the automaton of a grammar.
//
// The order of the steps, each left out where its option is off:
//   1. log-probabilities for the reader: log-softmax of the model's own logits, before all that follows
//   2. logit bias, added; -100 bans a token, 100 leaves no others
//   3. repeat penalty over the last `repeat_window` tokens of prompt and answer
//   4. frequency and presence penalty over the tokens of the answer
//   5. the grammar's mask; before its text, that of what leads in to it
//   6. temperature 0: the highest logit. Otherwise temperature, top-k, top-p of what top-k left, min-p, and a draw
// 2 to 4 are in the order of vLLM and llama.cpp, 6 in that of Hugging Face transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/infer/request/lead_in.h"
#include "butterfly/text/grammar/matcher.h"

namespace butterfly {

inline constexpr float kBannedBias = -100.0f;
inline constexpr float kForcedBias = 100.0f;
inline constexpr int kWholeText = -1;

struct LogitBias {
  TokenId token{};
  float value = 0;  // from kBannedBias to kForcedBias
  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

struct SamplingOptions {
  float temperature = 0.0f;     // 0: the most likely token
  int top_k = 0;                // keep the k most likely; 0: all
  float top_p = 1.0f;           // keep the smallest set with at least this probability; 1: all
  float min_p = 0.0f;           // drop tokens below this fraction of the best one's probability; 0: none
  float repeat_penalty = 1.0f;  // divides positive, multiplies negative logits of tokens seen; 1: none
  int repeat_window = 64;       // tokens that repeat_penalty looks back; kWholeText: all, as in transformers and vLLM
  std::uint64_t seed = 0;
  float presence_penalty = 0.0f;        // taken from the logit of each token that the answer has; -2 to 2
  float frequency_penalty = 0.0f;       // the same once for each time that it has it; -2 to 2
  std::vector<LogitBias> logit_bias{};  // of a token that is named twice the last counts
  int logprobs = -1;                    // with each token its log-probability and this number of best ones; -1: none
};

inline constexpr int kLogprobsMax = 1000;
inline constexpr std::size_t kLogitBiasMax = 10'000;

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

/// By the model alone, natural logarithms.
struct TokenLogprob {
  TokenId token{};
  double logprob = 0;
};

struct SampledToken {
  TokenId token{};
  double logprob = 0;               // 0 where none were asked for
  std::vector<TokenLogprob> top{};  // most likely first, ties by lower id
};

/// What a Sampler is made of, but for the options: all that it is to know of its request.
struct SamplerInput {
  std::span<const TokenId> prompt{};
  std::uint64_t sample_index = 0;
  std::optional<GrammarMatcher> matcher{};  // nothing: any text will do
  std::optional<LeadIn> lead_in{};          // what stands before the matcher's text
};

class Sampler {
 public:
  /// `options` are valid.
  Sampler(const SamplingOptions& options, SamplerInput input);

  /// Draws for the place after prompt and accepted tokens; draws the same again until accept() is called. logits[vocab]
  /// may be changed. Ties go to the lowest id; a logit that is no number is never chosen. Errors:
  /// kInvalidArgument for a bias on a token that the model does not have, and where the grammar allows none of those
  /// that it has.
  Result<SampledToken> sample(std::span<float> logits);

  /// The next token of the text. Errors: kInvalidArgument for one that the grammar does not allow.
  Status accept(TokenId token);

  /// The answer has a grammar, which decides where it may end.
  bool has_grammar() const { return matcher_.has_value(); }
  /// And it ends here: nothing may follow.
  bool complete() const { return matcher_ && !leads_in() && matcher_->complete(); }

  std::span<const TokenId> tokens() const { return tokens_; }  // prompt and answer

 private:
  void add_bias(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;
  Status rule_out(std::span<float> logits);
  Status rule_out_before(std::span<float> logits) const;
  bool leads_in() const { return lead_in_ && !lead_in_->over(); }
  void ban_and_force(std::span<float> logits) const;

  SamplingOptions options_;
  std::uint64_t sample_index_;
  std::optional<GrammarMatcher> matcher_;
  std::optional<LeadIn> lead_in_;
  std::vector<LogitBias> bias_;  // by token, each once
  std::vector<TokenId> tokens_;
  std::size_t prompt_tokens_;
};

/// One draw from logits that need no more changes than the options' temperature and cut-offs.
TokenId draw(std::span<const float> logits, const SamplingOptions& options, SampleKey key);

/// Log-softmax of `logits` at `token`, and its `count` largest values.
SampledToken log_probabilities(std::span<const float> logits, TokenId token, int count);

}  // namespace butterfly
