#include "butterfly/train/data/synthetic.h"

#include <bit>
#include <cmath>

#include "butterfly/base/hash/digest.h"
#include "butterfly/train/data/permutation.h"

namespace butterfly {
namespace {

constexpr std::int64_t kTrainTokens = std::int64_t{1} << 40;
constexpr std::int64_t kValidationTokens = 4096;
constexpr std::uint64_t kSuccessors = 4;

/// Windows never come back, and those of the validation are numbered from the other end.
class Synthetic : public Dataset {
 public:
  enum class Kind { kRandom, kMarkov };
  Synthetic(Kind kind, const DataConfig& config, const DatasetOptions& options)
      : kind_(kind),
        seed_(config.seed),
        validation_tokens_(config.validation_share > 0 ? kValidationTokens : 0),
        vocab_(static_cast<std::uint64_t>(options.vocab)),
        global_batch_(options.global_batch),
        next_(vocab_, config.seed) {}

  int vocab() const override { return static_cast<int>(vocab_); }

  DatasetStats stats() const override {
    const double uniform = std::log(static_cast<double>(vocab_));
    // Chances of 1/2, 1/4, 1/8 and 1/8 are 1.75 bits.
    return {.train_tokens = kTrainTokens,
            .validation_tokens = validation_tokens_,
            .unigram_entropy = uniform,
            .known_entropy = kind_ == Kind::kRandom ? uniform : 1.75 * std::log(2.0)};
  }

  Result<std::string> digest() const override {
    return to_hex(sha256(
        as_bytes(fmt::format("{} tokens, {}, seed {}", vocab_, kind_ == Kind::kRandom ? "random" : "markov", seed_))));
  }

  void sequence(std::int64_t step, int index, std::span<TokenId> tokens, std::span<TokenId> targets) const override {
    fill(static_cast<std::uint64_t>(step * global_batch_ + index), tokens, targets);
  }

  std::int64_t validation_windows(int seq) const override { return (validation_tokens_ + seq - 1) / seq; }

  void validation_window(std::int64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const override {
    fill(~static_cast<std::uint64_t>(window), tokens, targets);
    const auto seq = static_cast<std::int64_t>(targets.size());
    for (std::int64_t i = std::max<std::int64_t>(0, validation_tokens_ - window * seq); i < seq; ++i) {
      targets[static_cast<std::size_t>(i)] = TokenId(-1);
    }
  }

 private:
  /// Every way on is a permutation of the vocabulary, so all tokens are equally frequent.
  std::uint64_t successor(std::uint64_t token, std::uint64_t random) const {
    const auto way = static_cast<std::uint64_t>(std::countr_one(random & (kSuccessors * 2 - 1)));
    return (next_(token) + std::min(way, kSuccessors - 1)) % vocab_;
  }

  void fill(std::uint64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const {
    const std::uint64_t key = mixed(seed_, window);
    std::uint64_t token = mixed(key, 0) % vocab_;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = TokenId(static_cast<std::int32_t>(token));
      const std::uint64_t random = mixed(key, i + 1);
      token = kind_ == Kind::kRandom ? random % vocab_ : successor(token, random);
      targets[i] = TokenId(static_cast<std::int32_t>(token));
    }
  }

  Kind kind_;
  std::uint64_t seed_;
  std::int64_t validation_tokens_;
  std::uint64_t vocab_;
  std::int64_t global_batch_;
  Permutation next_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> make_synthetic(const DataConfig& config, const DatasetOptions& options) {
  const std::string& name = config.files.front();
  const bool random = name == "synthetic:random";
  if (!random && name != "synthetic:markov") {
    return make_error(ErrorCode::kNotFound,
                      "\"{}\" is no synthetic corpus, there are synthetic:markov, synthetic:random", name);
  }
  DatasetOptions known = options;
  if (known.vocab == 0 && options.tokenizer != nullptr) known.vocab = options.tokenizer->vocabulary().size();
  if (known.vocab < static_cast<int>(kSuccessors)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: the vocabulary has {} tokens, at least {} are needed", name,
                      known.vocab, kSuccessors);
  }
  const auto kind = random ? Synthetic::Kind::kRandom : Synthetic::Kind::kMarkov;
  return std::unique_ptr<Dataset>(std::make_unique<Synthetic>(kind, config, known));
}

}  // namespace butterfly
