#include "butterfly/infer/request/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "butterfly/model/core/rotary.h"
#include "butterfly/trace/trace.h"

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
  if (o.repeat_window < kWholeText) return refuse("repeat-last-n", o.repeat_window, "at least -1");
  for (const auto& [name, value] :
       {std::pair{"presence-penalty", o.presence_penalty}, std::pair{"frequency-penalty", o.frequency_penalty}}) {
    if (!(value >= -2.0f && value <= 2.0f)) return refuse(name, value, "from -2 to 2");
  }
  if (o.logit_bias.size() > kLogitBiasMax) {
    return make_error(ErrorCode::kInvalidArgument, "logit-bias names {} tokens, {} are possible", o.logit_bias.size(),
                      kLogitBiasMax);
  }
  for (const LogitBias& bias : o.logit_bias) {
    if (bias.token.value < 0) return refuse("a token of logit-bias", bias.token.value, "at least 0");
    if (!(bias.value >= kBannedBias && bias.value <= kForcedBias)) {
      return refuse("logit-bias", bias.value, "from -100 to 100");
    }
  }
  if (o.logprobs < -1 || o.logprobs > kLogprobsMax) return refuse("logprobs", o.logprobs, "from 0 to 1000");
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

TokenId most_likely(std::span<const float> logits) {
  std::size_t best = logits.size();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool first = best == logits.size() && !std::isnan(logits[i]);
    if (first || (best < logits.size() && logits[i] > logits[best])) best = i;
  }
  return TokenId(static_cast<std::int32_t>(best < logits.size() ? best : 0));
}

/// What can be drawn, in the order of before(), found as far as it is asked for: most draws end near the front.
class Order {
 public:
  Order(std::span<const float> logits, double temperature) : logits_(logits), buckets_(logits.size()) {
    for (const float logit : logits) {
      size_ += std::isnan(logit) ? 0 : 1;
      best_ = logit > best_ ? logit : best_;
    }
    // Rounding keeps the order: nobody stands before one of a lower bucket. No number is in the last one, too.
    const auto scale = static_cast<float>(kPerNat / std::clamp(temperature, 1e-6, 1e6));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float distance = logits[i] == best_ ? 0.0f : (best_ - logits[i]) * scale;
      buckets_[i] = static_cast<std::uint16_t>(static_cast<int>(distance < kBuckets - 1 ? distance : kBuckets - 1));
    }
    for (const std::uint16_t bucket : buckets_) ++counts_[bucket];
  }

  std::size_t size() const { return size_; }
  float best() const { return best_; }

  /// place < size().
  const Candidate& operator[](std::size_t place) {
    while (place >= found_.size()) find_more();
    return found_[place];
  }

 private:
  static constexpr std::size_t kBuckets = 1024;
  static constexpr double kPerNat = 32;
  static constexpr std::size_t kFirst = 256;  // candidates that are found at first; then as many as there are

  void find_more() {
    const std::size_t begin = bucket_, before_these = found_.size();
    const std::size_t wanted = std::max(kFirst, before_these);
    std::size_t count = 0;
    while (bucket_ < kBuckets && count < wanted) count += counts_[bucket_++];
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] < begin || buckets_[i] >= bucket_ || std::isnan(logits_[i])) continue;
      found_.push_back({logits_[i], static_cast<std::int32_t>(i)});
    }
    std::sort(found_.begin() + static_cast<std::ptrdiff_t>(before_these), found_.end(), before);
  }

  const std::span<const float> logits_;
  std::vector<std::uint16_t> buckets_;  // of each logit
  std::array<std::size_t, kBuckets> counts_{};
  std::size_t size_ = 0, bucket_ = 0;  // those before bucket_ are found
  float best_ = -std::numeric_limits<float>::infinity();
  std::vector<Candidate> found_;
};

/// The text's tokens, each once with its count, ascending.
std::vector<std::pair<TokenId, int>> counted(std::span<const TokenId> tokens, std::size_t vocab) {
  std::vector<TokenId> seen(tokens.begin(), tokens.end());
  std::erase_if(seen, [&](TokenId id) { return id.value < 0 || static_cast<std::size_t>(id.value) >= vocab; });
  std::ranges::sort(seen);
  std::vector<std::pair<TokenId, int>> counts;
  for (const TokenId token : seen) {
    if (counts.empty() || counts.back().first != token) counts.emplace_back(token, 0);
    ++counts.back().second;
  }
  return counts;
}

/// exp((logit - best) / temperature): 0 for no number, and where it is too small for a normal one. In double with our
/// own exp: the same on every CPU.
std::vector<double> relative_probabilities(std::span<const float> logits, double best, double temperature) {
  constexpr double kSmallest = -700.0;
  std::vector<double> p(logits.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double x = (logits[i] - best) / temperature;
    p[i] = x > kSmallest ? x : kSmallest;
  }
  exact::exp(p);
  const double smallest = exact::exp(kSmallest);
  for (double& value : p) value = value > smallest ? value : 0.0;
  return p;
}

double sum_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

constexpr float kRuledOut = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TokenId draw(std::span<const float> logits, const SamplingOptions& options, SampleKey key) {
  if (options.temperature == 0.0f) return most_likely(logits);
  Order order(logits, options.temperature);
  if (order.size() == 0) return TokenId(0);
  const bool all = options.top_k <= 0 || static_cast<std::size_t>(options.top_k) >= order.size();
  const std::size_t keep = all ? order.size() : static_cast<std::size_t>(options.top_k);
  std::vector<float> few;  // with top-k, in their order
  for (std::size_t i = 0; i < keep && !all; ++i) few.push_back(order[i].logit);
  const std::vector<double> p = relative_probabilities(all ? logits : few, order.best(), options.temperature);
  const auto p_of = [&](std::size_t place) { return p[all ? static_cast<std::size_t>(order[place].id) : place]; };
  const double total = sum_of(p);
  if (!(total > 0)) return TokenId(order[0].id);  // infinite
  std::size_t kept = 0;
  double mass = 0;
  if (options.top_p >= 1.0f && options.min_p <= 0.0f) {
    kept = keep;
    mass = total;
  }
  while (kept < keep) {
    const double next = p_of(kept);
    if (kept > 0 && (mass >= options.top_p * total || next < options.min_p * p_of(0))) break;
    mass += next;
    ++kept;
  }
  double threshold = uniform_at(options.seed, key.index, key.position) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    threshold -= p_of(i);
    if (threshold < 0) return TokenId(order[i].id);
  }
  return TokenId(order[kept - 1].id);
}

SampledToken log_probabilities(std::span<const float> logits, TokenId token, int count) {
  SampledToken result{.token = token};
  Order order(logits, 1.0);
  if (order.size() == 0) return result;
  const double best = order.best();
  const double total = sum_of(relative_probabilities(logits, best, 1.0));
  if (!(total > 0)) return result;
  const double normaliser = best + exact::log(total);
  result.logprob = logits[static_cast<std::size_t>(token.value)] - normaliser;
  const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(std::max(count, 0)));
  for (std::size_t i = 0; i < kept; ++i) result.top.push_back({TokenId(order[i].id), order[i].logit - normaliser});
  return result;
}

Sampler::Sampler(const SamplingOptions& options, SamplerInput input)
    : options_(options),
      sample_index_(input.sample_index),
      matcher_(std::move(input.matcher)),
      lead_in_(std::move(input.lead_in)),
      tokens_(input.prompt.begin(), input.prompt.end()),
      prompt_tokens_(input.prompt.size()) {
  std::map<TokenId, float> last;
  for (const LogitBias& bias : options_.logit_bias) last[bias.token] = bias.value;
  for (const auto& [token, value] : last) bias_.push_back({token, value});
}

void Sampler::add_bias(std::span<float> logits) const {
  for (const LogitBias& bias : bias_) logits[static_cast<std::size_t>(bias.token.value)] += bias.value;
}

void Sampler::penalise(std::span<float> logits) const {
  const std::span<const TokenId> text(tokens_);
  if (options_.repeat_penalty != 1.0f) {
    const std::size_t window =
        options_.repeat_window == kWholeText ? text.size() : static_cast<std::size_t>(options_.repeat_window);
    for (const auto& [token, count] : counted(text.last(std::min(text.size(), window)), logits.size())) {
      float& logit = logits[static_cast<std::size_t>(token.value)];
      logit = logit > 0.0f ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    }
  }
  if (options_.presence_penalty == 0.0f && options_.frequency_penalty == 0.0f) return;
  for (const auto& [token, count] : counted(text.subspan(prompt_tokens_), logits.size())) {
    float& logit = logits[static_cast<std::size_t>(token.value)];
    logit -= options_.frequency_penalty * static_cast<float>(count);
    logit -= options_.presence_penalty;
  }
}

/// Before the grammar's text: all but the ends of an answer, or the one token that has to come.
Status Sampler::rule_out_before(std::span<float> logits) const {
  const std::optional<TokenId> forced = lead_in_->forced(matcher_->tokens_left());
  if (!forced) {
    for (const TokenId end : matcher_->end_tokens()) {
      const auto id = static_cast<std::size_t>(end.value);
      if (id < logits.size()) logits[id] = kRuledOut;
    }
    return {};
  }
  const auto only = static_cast<std::size_t>(forced->value);
  if (only >= logits.size()) {
    return make_error(ErrorCode::kInvalidArgument, "token {} has to come before the grammar's text, the model has {}",
                      only, logits.size());
  }
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (id != only) logits[id] = kRuledOut;
  }
  return {};
}

Status Sampler::rule_out(std::span<float> logits) {
  if (!matcher_) return {};
  const trace::Scope scope(trace::Zone::kGrammar, {.number = 1, .in = static_cast<std::uint32_t>(logits.size())});
  if (leads_in()) return rule_out_before(logits);
  const std::span<const std::uint64_t> allowed = matcher_->mask();
  bool any = false;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (id / 64 < allowed.size() && (allowed[id / 64] >> (id % 64) & 1) != 0) {
      any = any || !std::isnan(logits[id]);
    } else {
      logits[id] = kRuledOut;
    }
  }
  if (any) return {};
  return make_error(ErrorCode::kInvalidArgument, "the grammar allows none of the model's {} tokens at position {}",
                    logits.size(), tokens_.size());
}

/// Bans hold where anything else is left; so do forced tokens, where one of them is.
void Sampler::ban_and_force(std::span<float> logits) const {
  const auto possible = [&](std::size_t id) { return !std::isnan(logits[id]); };
  std::vector<std::size_t> forced;
  std::vector<std::size_t> banned;
  for (const LogitBias& bias : bias_) {
    const auto id = static_cast<std::size_t>(bias.token.value);
    if (!possible(id)) continue;
    if (bias.value >= kForcedBias) forced.push_back(id);
    if (bias.value <= kBannedBias) banned.push_back(id);
  }
  if (!forced.empty()) {
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (!std::ranges::binary_search(forced, id)) logits[id] = kRuledOut;
    }
    return;
  }
  if (banned.empty()) return;
  const auto all = static_cast<std::size_t>(std::ranges::count_if(logits, [](float x) { return !std::isnan(x); }));
  if (banned.size() == all) return;
  for (const std::size_t id : banned) logits[id] = kRuledOut;
}

Result<SampledToken> Sampler::sample(std::span<float> logits) {
  if (!bias_.empty() && static_cast<std::size_t>(bias_.back().token.value) >= logits.size()) {
    return make_error(ErrorCode::kInvalidArgument, "logit-bias names token {}, the model has {}",
                      bias_.back().token.value, logits.size());
  }
  const std::vector<float> raw(logits.begin(), options_.logprobs < 0 ? logits.begin() : logits.end());
  add_bias(logits);
  penalise(logits);
  BF_TRY(rule_out(logits));
  ban_and_force(logits);
  const TokenId token = draw(logits, options_, {sample_index_, tokens_.size()});
  if (options_.logprobs < 0) return SampledToken{.token = token};
  return log_probabilities(raw, token, options_.logprobs);
}

Status Sampler::accept(TokenId token) {
  trace::Scope scope(trace::Zone::kGrammar, {.number = 1});
  if (!matcher_) scope.drop();
  if (leads_in()) {
    lead_in_->accept(token, matcher_->tokens_left());
    matcher_->pass();
  } else if (matcher_) {
    BF_TRY(matcher_->accept(token));
  }
  tokens_.push_back(token);
  return {};
}

}  // namespace butterfly
