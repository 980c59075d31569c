#include "butterfly/infer/request/perplexity.h"
#include "butterfly/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace butterfly {
namespace {

/// -log softmax(logits)[target], in double precision.
double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - best);
  return std::log(total) + best - static_cast<double>(logits[static_cast<std::size_t>(target.value)]);
}

Result<Step> window_step(std::uint64_t id, std::span<const TokenId> window) {
  Step step;
  step.id = id;
  const SequenceId sequence(static_cast<std::int32_t>(id % 2));
  step.release.push_back(sequence);  // what the window before the last one left
  step.batch.runs.push_back({sequence, 0, static_cast<std::int32_t>(window.size()), 0});
  BF_ASSIGN_OR_RETURN(step.tensor,
                      Tensor::allocate(*Pool::shared(), DType::kI32, {static_cast<std::int64_t>(window.size())}));
  std::transform(window.begin(), window.end(), step.tensor.mutable_view().values<std::int32_t>().begin(),
                 [](TokenId token) { return token.value; });
  return step;
}

Result<Step> run_window(Pipeline& pipeline, std::uint64_t id, std::span<const TokenId> window) {
  while (true) {
    BF_ASSIGN_OR_RETURN(Step step, window_step(id, window));
    const Status submitted = pipeline.submit(std::move(step));
    Result<Step> done = submitted ? pipeline.next() : Result<Step>(tl::unexpected(submitted.error()));
    if (done) return done;
    BF_TRY(pipeline.recover(done.error()));
  }
}

/// Calls work(window, index of its first fresh token) for each window of the text.
template <typename Work>
Status for_each_window(std::span<const TokenId> tokens, const PerplexityOptions& options, const std::stop_token& stop,
                       const Work& work) {
  if (tokens.size() < 2 || options.window < 2) {
    return make_error(ErrorCode::kInvalidArgument, "the text has {} tokens and the window {}, both need at least 2",
                      tokens.size(), options.window);
  }
  const bool with_bos = options.bos.value >= 0;
  const std::size_t fresh = static_cast<std::size_t>(options.window) - (with_bos ? 1 : 0);
  for (std::size_t begin = 0; begin < tokens.size(); begin += fresh) {
    if (stop.stop_requested())
      return make_error(ErrorCode::kCancelled, "cancelled after {} of {} tokens", begin, tokens.size());
    std::vector<TokenId> window;
    if (with_bos) window.push_back(options.bos);
    const trace::Scope turn(trace::Zone::kStepTurn, {.number = 1});
    const auto part = tokens.subspan(begin, std::min(fresh, tokens.size() - begin));
    window.insert(window.end(), part.begin(), part.end());
    if (window.size() < 2) break;
    BF_TRY(work(std::span<const TokenId>(window), begin));
    if (options.progress) options.progress(std::min(begin + fresh, tokens.size()), tokens.size());
  }
  return {};
}

/// log of the sum of exp(logit), in double precision.
double log_total(std::span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - best);
  return std::log(total) + best;
}

void add_divergence(std::span<const float> judged, std::span<const float> against, DivergenceResult& result) {
  const double log_judged = log_total(judged);
  const double log_against = log_total(against);
  double sum = 0;
  for (std::size_t i = 0; i < against.size(); ++i) {
    const double log_p = static_cast<double>(against[i]) - log_against;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(judged[i]) - log_judged));
  }
  const double token = std::max(0.0, sum);
  result.mean += token;
  result.largest = std::max(result.largest, token);
  const auto choice = [](std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  result.same_choice += choice(judged) == choice(against) ? 1 : 0;
  ++result.predicted;
}

}  // namespace

Result<PerplexityResult> perplexity(Pipeline& pipeline, std::span<const TokenId> tokens,
                                    const PerplexityOptions& options, std::stop_token stop) {
  PerplexityResult result;
  double sum = 0;
  double squares = 0;
  std::uint64_t id = 0;
  BF_TRY(for_each_window(tokens, options, stop, [&](std::span<const TokenId> window, std::size_t begin) -> Status {
    BF_ASSIGN_OR_RETURN(const Step done, run_window(pipeline, id++, window));
    const trace::Scope scope(trace::Zone::kSample, {.number = 1, .bytes = done.tensor.view().bytes().size()});
    for (std::size_t i = 0; i + 1 < window.size(); ++i) {
      const double nll = negative_log_likelihood(done.tensor.row(static_cast<std::int64_t>(i)), window[i + 1]);
      if (!std::isfinite(nll)) {
        return make_error(ErrorCode::kBadData,
                          "token {} of {} has a negative log likelihood of {}, expected a finite number: the model's "
                          "weights are damaged or too large",
                          begin + i, tokens.size(), nll);
      }
      sum += nll;
      squares += nll * nll;
      ++result.predicted;
    }
    return {};
  }));
  const auto n = static_cast<double>(result.predicted);
  result.mean_nll = sum / n;
  result.perplexity = std::exp(result.mean_nll);
  result.standard_error =
      n > 1 ? std::sqrt(std::max(0.0, squares / n - result.mean_nll * result.mean_nll) / (n - 1)) : 0;
  return result;
}

Result<DivergenceResult> divergence(Pipeline& judged, Pipeline& against, std::span<const TokenId> tokens,
                                    const PerplexityOptions& options, std::stop_token stop) {
  DivergenceResult result;
  std::uint64_t id = 0;
  BF_TRY(for_each_window(tokens, options, stop, [&](std::span<const TokenId> window, std::size_t) -> Status {
    BF_ASSIGN_OR_RETURN(const Step ours, run_window(judged, id, window));
    BF_ASSIGN_OR_RETURN(const Step theirs, run_window(against, id++, window));
    const trace::Scope scope(trace::Zone::kSample, {.number = 1, .bytes = 2 * ours.tensor.view().bytes().size()});
    for (std::int64_t i = 0; i + 1 < static_cast<std::int64_t>(window.size()); ++i) {
      const std::span<const float> a = ours.tensor.row(i);
      const std::span<const float> b = theirs.tensor.row(i);
      if (a.size() != b.size()) {
        return make_error(ErrorCode::kInvalidArgument, "the models have {} and {} tokens, expected as many", a.size(),
                          b.size());
      }
      add_divergence(a, b, result);
    }
    return {};
  }));
  result.mean /= static_cast<double>(result.predicted);
  result.same_choice /= static_cast<double>(result.predicted);
  return result;
}

}  // namespace butterfly
