#include "butterfly/train/run/audit.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "butterfly/base/hash/digest.h"

namespace butterfly {
namespace {

/// The loss that is compared with the data's entropy is a mean over this number of last steps.
constexpr std::size_t kLossWindow = 20;
/// A model has met the data: these steps, and these tokens for each one that the vocabulary's frequencies alone need.
constexpr std::int64_t kStepsToLearn = 200;
/// Work of the backward pass relative to the forward pass. Each matmul has two gradients, so 2; matmuls that are
/// computed again make it 3, fused attention (five matmuls after two, and two again) 3.5. What is not matmuls is about
/// as much in both.
constexpr double kBackwardLeast = 1.0, kBackwardMost = 4.0;
/// Smaller steps are bookkeeping rather than matmuls, and their times say nothing about them.
constexpr double kFlopsToTime = 1e9;
constexpr std::int64_t kStepsToTime = 5;
constexpr double kPhasesTolerance = 0.05;
constexpr double kBytesTolerance = 0.01;
constexpr std::int64_t kBucketToCount = 1 << 20;  // below it headers and padding may be more than the tolerance

/// Collects what checks say.
class Findings {
 public:
  void good(std::string text) { verdict_.checks.push_back(std::move(text)); }
  void not_judged(std::string_view what, const std::string& why) {
    verdict_.checks.push_back(fmt::format("{}: not judged, {}", what, why));
  }
  void bad(std::string text) {
    verdict_.checks.push_back(text);
    verdict_.reasons.push_back(std::move(text));
  }
  void judge(bool is_good, std::string text) { is_good ? good(std::move(text)) : bad(std::move(text)); }

  AuditVerdict take() {
    verdict_.valid = verdict_.reasons.empty();
    return std::move(verdict_);
  }

 private:
  AuditVerdict verdict_;
};

/// Which expert of which layer a parameter is of, by its canonical name: blk.LAYER.ffn_*_exps.EXPERT.weight.
struct OfExpert {
  std::size_t layer = 0;
  std::size_t expert = 0;
};
std::optional<OfExpert> expert_of(std::string_view name) {
  constexpr std::string_view kBlock = "blk.", kExperts = "_exps.";
  const std::size_t experts = name.find(kExperts);
  if (!name.starts_with(kBlock) || experts == name.npos) return std::nullopt;
  OfExpert of;
  const auto number = [&](std::size_t at, std::size_t& value) {
    return std::from_chars(name.data() + at, name.data() + name.size(), value).ec == std::errc();
  };
  if (!number(kBlock.size(), of.layer) || !number(experts + kExperts.size(), of.expert)) return std::nullopt;
  return of;
}

std::span<const float> in(std::span<const float> all, ParameterRange range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

std::string hash_of(std::span<const float> all, const std::vector<ParameterRange>& ranges) {
  Sha256Hasher hasher;
  for (const ParameterRange& range : ranges) hasher.add(std::as_bytes(in(all, range)));
  return hasher.finish().value_or("");
}

/// What of a parameter is in `held`; all of it where that is empty.
std::vector<ParameterRange> parts_in(const Parameter& parameter, const std::vector<ParameterRange>& held) {
  const ParameterRange all{.begin = parameter.offset, .end = parameter.offset + parameter.size()};
  std::vector<ParameterRange> parts;
  for (const ParameterRange& one : held.empty() ? std::vector{all} : held) {
    const ParameterRange mine{.begin = std::max(all.begin, one.begin), .end = std::min(all.end, one.end)};
    if (mine.begin < mine.end) parts.push_back(mine);
  }
  return parts;
}

/// The first names and how many there are.
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? fmt::format("{} and {} more", text, names.size() - kShown) : text;
}

void check_names(Findings& findings, const std::vector<std::string>& bad, const std::string& good_text,
                 const char* bad_text) {
  bad.empty() ? findings.good(good_text) : findings.bad(fmt::format("{} {}", some(bad), bad_text));
}

void check_loss(Findings& findings, const std::deque<double>& losses, double tokens, const AuditFacts& facts) {
  constexpr std::string_view kWhat = "loss against the entropy of the tokens' frequencies";
  const double entropy = facts.data.unigram_entropy;
  if (facts.data.known_entropy >= 0 && facts.data.known_entropy >= entropy * 0.99) {
    return findings.not_judged(kWhat, "nothing in the data predicts a token");
  }
  if (facts.step < facts.steps || facts.step < kStepsToLearn) {
    return findings.not_judged(kWhat, fmt::format("{} of {} steps are done and at least {} are needed", facts.step,
                                                  facts.steps, kStepsToLearn));
  }
  // As many tokens as pass on average before a token of mean information was seen some 20 times.
  const double tokens_needed = 20.0 * std::exp(entropy);
  if (tokens < tokens_needed) {
    return findings.not_judged(
        kWhat, fmt::format("{:.0f} tokens were trained on and {:.0f} are needed", tokens, tokens_needed));
  }
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  const double loss = sum / static_cast<double>(losses.size());
  findings.judge(loss < entropy,
                 fmt::format("the loss of the last {} steps is {:.4f} nats, a model that looks at no context "
                             "reaches {:.4f}",
                             losses.size(), loss, entropy));
}

void check_times(Findings& findings, const StepPhases& phases, std::int64_t steps, const AuditFacts& facts) {
  const double sum =
      phases.data_s + phases.forward_s + phases.backward_s + phases.communication_exposed_s + phases.optimizer_s;
  // A turn that another program takes between two looks at the clock is no phase.
  constexpr double kTurnS = 0.01;
  findings.judge(std::abs(sum - phases.total_s) <= std::max(kPhasesTolerance * phases.total_s, kTurnS),
                 fmt::format("the phases add up to {:.4g} s, the steps took {:.4g} s", sum, phases.total_s));
  constexpr std::string_view kWhat = "time of the backward pass";
  if (facts.forward_flops_per_step < kFlopsToTime || steps < kStepsToTime) {
    return findings.not_judged(kWhat, fmt::format("{} steps of {:.3g} FLOPs forward are too little to time", steps,
                                                  facts.forward_flops_per_step));
  }
  const double ratio = phases.backward_s / phases.forward_s;
  // Gradients go to their owners meanwhile, on the same cores, and their memory comes and goes.
  const double most = facts.divided ? 2.0 * kBackwardMost : kBackwardMost;
  findings.judge(ratio >= kBackwardLeast && ratio <= most,
                 fmt::format("the backward pass took {:.2f} times as long as the forward pass, {} to {} make sense",
                             ratio, kBackwardLeast, most));
}

void check_utilisation(Findings& findings, const AuditFacts& facts) {
  if (facts.mfu <= 0) return findings.not_judged("utilisation", "the machine's peak is not known");
  findings.judge(facts.mfu < 1.0, fmt::format("the run used {:.1f} % of the measured peak", facts.mfu * 100.0));
}

void check_bytes(Findings& findings, std::uint64_t sent, std::uint64_t formula, const AuditFacts& facts) {
  constexpr std::string_view kWhat = "bytes on the wire";
  if (facts.rank_hashes.size() < 2) return findings.not_judged(kWhat, "there is one rank");
  if (facts.bucket_bytes < kBucketToCount) {
    return findings.not_judged(
        kWhat, fmt::format("buckets have {} bytes, at least {} are needed", facts.bucket_bytes, kBucketToCount));
  }
  const double difference = std::abs(static_cast<double>(sent) - static_cast<double>(formula));
  findings.judge(difference <= kBytesTolerance * static_cast<double>(formula),
                 fmt::format("{} bytes of gradients were sent, the formula says {}", sent, formula));
}

void check_ranks(Findings& findings, const std::vector<std::string>& hashes) {
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    return findings.bad(
        fmt::format("rank {} ended with weights {:.12}, rank 0 with {:.12}", rank, hashes[rank], hashes[0]));
  }
  if (hashes.size() > 1) findings.good(fmt::format("all {} ranks ended with the same weights", hashes.size()));
}

/// Who holds a copy of a part updates it as its owner does.
void check_copies(Findings& findings, const std::vector<std::vector<std::string>>& hashes) {
  std::size_t copies = 0;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    for (std::size_t owner = 0; owner < hashes.size(); ++owner) {
      const std::string &copy = hashes[rank][owner], &own = hashes[owner][owner];
      if (rank == owner || copy.empty()) continue;
      ++copies;
      if (copy == own) continue;
      findings.bad(fmt::format("rank {} ended with {:.12} as its copy of rank {}'s part, rank {} with {:.12}", rank,
                               copy, owner, owner, own));
    }
  }
  if (copies > 0) findings.good(fmt::format("{} copies of parts are compared with their owners'", copies));
}

}  // namespace

std::string to_string(const AuditVerdict& verdict) {
  if (verdict.valid) return "valid";
  std::string text = "INVALID: ";
  for (std::size_t i = 0; i < verdict.reasons.size(); ++i) text += (i == 0 ? "" : "; ") + verdict.reasons[i];
  return text;
}

Audit::Audit(const ParameterSet& parameters, const std::vector<ParameterRange>& owned) {
  for (const Parameter& parameter : parameters.list()) {
    Watched watched{.parameter = parameter, .ranges = parts_in(parameter, owned)};
    watched.first_hash = hash_of(parameters.own_weights(), watched.ranges);
    parameters_.push_back(std::move(watched));
  }
}

void Audit::hold(const ParameterSet& parameters, const std::vector<ParameterRange>& held,
                 const std::vector<double>& seen) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Watched& watched = parameters_[i];
    watched.gradient_seen = seen[i] != 0.0;
    watched.moved = seen[parameters_.size() + i] != 0.0;
    watched.ranges = parts_in(watched.parameter, held);
    watched.first_hash = hash_of(parameters.own_weights(), watched.ranges);
  }
}

/// Of an expert that no token of the run went through: it has no gradient to have.
bool Audit::waits_for_tokens(const Watched& watched) const {
  const auto expert = expert_of(watched.parameter.name);
  if (!expert || experts_ == 0) return false;
  const std::size_t at = expert->layer * static_cast<std::size_t>(experts_) + expert->expert;
  return at < expert_tokens_.size() && expert_tokens_[at] == 0;
}

void Audit::step(const StepReport& report, const ParameterSet& parameters) {
  ++steps_;
  updates_ += report.left_out ? 0 : 1;
  tokens_ += report.tokens;
  last_losses_.push_back(report.loss);
  if (last_losses_.size() > kLossWindow) last_losses_.pop_front();
  phases_.data_s += report.phases.data_s;
  phases_.forward_s += report.phases.forward_s;
  phases_.backward_s += report.phases.backward_s;
  phases_.communication_exposed_s += report.phases.communication_exposed_s;
  phases_.optimizer_s += report.phases.optimizer_s;
  phases_.total_s += report.phases.total_s;
  bytes_sent_ += report.reduced.bytes_sent;
  formula_bytes_ += report.reduced.formula_bytes;
  experts_ = report.experts;
  expert_tokens_.resize(report.expert_tokens.size());
  for (std::size_t i = 0; i < expert_tokens_.size(); ++i) expert_tokens_[i] += report.expert_tokens[i];
  for (Watched& watched : parameters_) {
    if (watched.gradient_seen) continue;
    for (const ParameterRange& range : watched.ranges) {
      const std::span<const float> gradient = in(parameters.gradients(), range);
      watched.gradient_seen = watched.gradient_seen || std::any_of(gradient.begin(), gradient.end(), [](float g) {
                                return g != 0.0f && std::isfinite(g);
                              });
    }
  }
}

std::vector<double> Audit::seen(const ParameterSet& parameters) const {
  std::vector<double> seen;
  for (const Watched& watched : parameters_) seen.push_back(watched.gradient_seen ? 1.0 : 0.0);
  for (const Watched& watched : parameters_) {
    const bool moved = watched.moved || hash_of(parameters.own_weights(), watched.ranges) != watched.first_hash;
    seen.push_back(moved ? 1.0 : 0.0);
  }
  return seen;
}

AuditVerdict Audit::finish(const ParameterSet& parameters, const AuditFacts& facts) const {
  Findings findings;
  if (updates_ == 0) {
    findings.bad(fmt::format("nothing was trained: {} steps, none of which changed the weights", steps_));
    return findings.take();
  }
  std::vector<std::string> without_gradient, unmoved, moved_though_frozen, without_tokens;
  const std::vector<double> seen = facts.seen.empty() ? this->seen(parameters) : facts.seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Watched& watched = parameters_[i];
    const bool gradient_seen = seen[i] != 0.0, moved = seen[parameters_.size() + i] != 0.0;
    if (watched.parameter.frozen) {
      if (moved) moved_though_frozen.push_back(watched.parameter.name);
      continue;
    }
    if (!gradient_seen && waits_for_tokens(watched)) {
      without_tokens.push_back(watched.parameter.name);
      continue;
    }
    if (!gradient_seen) without_gradient.push_back(watched.parameter.name);
    if (!moved) unmoved.push_back(watched.parameter.name);
  }
  check_names(findings, without_gradient,
              without_tokens.empty()
                  ? "every parameter that is not frozen received a gradient"
                  : "every parameter that is not frozen, of experts with tokens, received a gradient",
              "never received a gradient that is finite and not zero");
  check_names(findings, unmoved, "every parameter that is not frozen moved", "did not move");
  if (!without_tokens.empty()) {
    findings.not_judged("gradients of experts without a token",
                        fmt::format("the router sent none to those of {}", some(without_tokens)));
  }
  check_names(findings, moved_though_frozen, "no frozen parameter moved", "moved, though declared frozen");
  const double tokens = static_cast<double>(tokens_) / static_cast<double>(steps_) * static_cast<double>(facts.step);
  check_loss(findings, last_losses_, tokens, facts);
  check_times(findings, phases_, steps_, facts);
  check_utilisation(findings, facts);
  check_bytes(findings, bytes_sent_, formula_bytes_, facts);
  check_ranks(findings, facts.rank_hashes);
  check_copies(findings, facts.part_hashes);
  return findings.take();
}

}  // namespace butterfly
