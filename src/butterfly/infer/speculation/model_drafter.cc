#include "butterfly/infer/speculation/model_drafter.h"

#include <algorithm>

#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::size_t kRowsMax = 512;  // of a prompt in one step

}  // namespace

ModelDrafter::ModelDrafter(std::unique_ptr<Deployment> model, int context)
    : model_(std::move(model)), context_(static_cast<std::size_t>(context)), pool_(Pool::create()) {}

/// Computes these tokens from `position` on: what follows the last of them.
Result<TokenId> ModelDrafter::most_probable(SequenceId sequence, std::size_t position,
                                            std::span<const TokenId> tokens) {
  Step step;
  step.id = next_step_++;
  step.release = std::exchange(released_, {});
  const auto rows = static_cast<std::int32_t>(tokens.size());
  step.batch.runs.push_back(
      {.sequence = sequence, .position = static_cast<std::int32_t>(position), .rows = rows, .logits_from = rows - 1});
  BF_ASSIGN_OR_RETURN(step.tensor, Tensor::allocate(*pool_, DType::kI32, {std::int64_t{rows}}));
  std::ranges::transform(tokens, step.tensor.mutable_view().values<std::int32_t>().begin(),
                         [](TokenId token) { return token.value; });
  BF_TRY(model_->pipeline().submit(std::move(step)));
  BF_ASSIGN_OR_RETURN(Step done, model_->pipeline().next());
  const std::span<const float> logits = done.tensor.row(0);
  return TokenId(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
}

/// Brings its model to the end of this text.
Result<TokenId> ModelDrafter::read(SequenceId sequence, std::span<const TokenId> tokens) {
  std::vector<TokenId>& cached = cached_[sequence];
  const auto differ = std::ranges::mismatch(cached, tokens).in1 - cached.begin();
  std::size_t at = std::min(static_cast<std::size_t>(differ), tokens.size() - 1);
  TokenId next{};
  while (at < tokens.size()) {
    const std::size_t rows = std::min(kRowsMax, tokens.size() - at);
    BF_ASSIGN_OR_RETURN(next, most_probable(sequence, at, tokens.subspan(at, rows)));
    at += rows;
  }
  cached.assign(tokens.begin(), tokens.end());
  return next;
}

Result<std::vector<TokenId>> ModelDrafter::propose(SequenceId sequence, std::span<const TokenId> tokens,
                                                   std::size_t most) {
  std::vector<TokenId> draft;
  if (tokens.size() + most > context_) return draft;
  BF_ASSIGN_OR_RETURN(TokenId next, read(sequence, tokens));
  draft.push_back(next);
  std::vector<TokenId>& cached = cached_.at(sequence);
  while (draft.size() < most) {
    const std::uint64_t begin = trace::now_ns();
    BF_ASSIGN_OR_RETURN(next, most_probable(sequence, cached.size(), std::span(&draft.back(), 1)));
    cached.push_back(draft.back());
    draft.push_back(next);
    constexpr double kWeight = 0.1;  // of the newest
    const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
    seconds_ = seconds_ > 1e-6 ? seconds_ + kWeight * (seconds - seconds_) : seconds;
  }
  return draft;
}

void ModelDrafter::forget(SequenceId sequence) {
  if (cached_.erase(sequence) > 0) released_.push_back(sequence);
}

Status check_same_tokens(const Checkpoint& model, const Checkpoint& draft) {
  const std::vector<std::string>& pieces = model.vocabulary.pieces;
  const std::vector<std::string>& others = draft.vocabulary.pieces;
  const std::string both = fmt::format("{} cannot guess for {}", draft.path, model.path);
  if (pieces.size() != others.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: it has {} tokens, expected {}", both, others.size(),
                      pieces.size());
  }
  const auto [one, other] = std::ranges::mismatch(pieces, others);
  if (one == pieces.end()) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: its token {} is another", both, one - pieces.begin());
}

}  // namespace butterfly
