#include "butterfly/infer/request/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "butterfly/model/core/rotary.h"

namespace butterfly {

Status validate(const SamplingOptions& o) {
  const auto refuse = [](const char* name, double value, const char* range) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {}, it must be {}", name, value, range);
  };
  if (!(o.temperature >= 0.0f) || std::isinf(o.temperature)) return refuse("temperature", o.temperature, "at least 0");
  if (o.top_k < 0) return refuse("top-k", o.top_k, "at least 0");
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f)) return refuse("top-p", o.top_p, "above 0 and at most 1");
  if (!(o.min_p >= 0.0f && o.min_p <= 1.0f)) return refuse("min-p", o.min_p, "from 0 to 1");
  if (!(o.repeat_penalty > 0.0f) || std::isinf(o.repeat_penalty)) {
    return refuse("repeat-penalty", o.repeat_penalty, "above 0");
  }
  return {};
}

float uniform_at(std::uint64_t seed, std::uint64_t sample, std::uint64_t position) {
  std::array<std::uint32_t, 4> counter{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                                       static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<float>(counter[0] >> 8) * 0x1p-24f;
}

namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

/// More likely first, ties by lower id: one total order, so every cut-off is unambiguous.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void penalise_repeats(std::span<float> logits, const SamplingOptions& options, std::span<const TokenId> history) {
  if (options.repeat_penalty == 1.0f) return;
  const auto window = static_cast<std::size_t>(std::max(options.repeat_window, 0));
  auto recent = history.last(std::min(history.size(), window));
  std::vector<TokenId> seen(recent.begin(), recent.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const TokenId token : seen) {
    if (token.value < 0 || static_cast<std::size_t>(token.value) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(token.value)];
    logit = logit > 0.0f ? logit / options.repeat_penalty : logit * options.repeat_penalty;
  }
}

TokenId most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  float highest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > highest) {
      highest = logits[i];
      best = i;
    }
  }
  return TokenId(static_cast<std::int32_t>(best));
}

}  // namespace

TokenId sample(std::span<float> logits, const SamplingOptions& options, std::span<const TokenId> history,
               SampleKey key) {
  penalise_repeats(logits, options, history);
  if (options.temperature == 0.0f) return most_likely(logits);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  if (candidates.empty()) return TokenId(0);
  const std::size_t keep =
      options.top_k > 0 ? std::min(candidates.size(), static_cast<std::size_t>(options.top_k)) : candidates.size();
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(keep), candidates.end(),
                    before);
  candidates.resize(keep);
  // Probabilities in double with own exp: the same on every CPU.
  const double best = candidates.front().logit;
  const double temperature = options.temperature;
  std::vector<double> p(keep);
  double total = 0;
  for (std::size_t i = 0; i < keep; ++i) {
    const double x = (candidates[i].logit - best) / temperature;
    p[i] = x > -700.0 ? exact::exp(x) : 0.0;
    total += p[i];
  }
  std::size_t kept = 0;
  double mass = 0;
  while (kept < keep) {
    if (kept > 0 && (mass >= options.top_p * total || p[kept] < options.min_p * p[0])) break;
    mass += p[kept++];
  }
  double threshold = uniform_at(options.seed, key.index, key.position) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    threshold -= p[i];
    if (threshold < 0) return TokenId(candidates[i].id);
  }
  return TokenId(candidates[kept - 1].id);
}

}  // namespace butterfly
