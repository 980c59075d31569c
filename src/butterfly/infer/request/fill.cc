#include "butterfly/infer/request/fill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace butterfly {
namespace {

/// The likeliest tokens, with softmax over all of them in double precision.
std::vector<FillChoice> choose(std::span<const float> logits, int count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(static_cast<std::size_t>(count), order.size());
  const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(kept),
                            [&](auto a, auto b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  const auto best = static_cast<double>(logit(order.front()));
  double total = 0;
  for (const float value : logits) total += std::exp(static_cast<double>(value) - best);
  std::vector<FillChoice> choices;
  for (std::size_t i = 0; i < kept; ++i) {
    const double share = std::exp(static_cast<double>(logit(order[i])) - best) / total;
    choices.push_back({TokenId{order[i]}, static_cast<float>(share)});
  }
  return choices;
}

}  // namespace

Result<TokenId> mask_token(const Vocabulary& vocabulary) {
  for (const char* name : {"[MASK]", "<mask>"}) {
    const auto found = std::ranges::find(vocabulary.pieces, name);
    if (found != vocabulary.pieces.end()) {
      return TokenId{static_cast<std::int32_t>(found - vocabulary.pieces.begin())};
    }
  }
  return make_error(ErrorCode::kUnsupported, "none of the {} tokens of this vocabulary is [MASK] or <mask>",
                    vocabulary.size());
}

Result<std::vector<std::vector<FilledMask>>> fill(Pipeline& pipeline, const ModelConfig& config,
                                                  std::span<const std::vector<TokenId>> texts,
                                                  const FillOptions& options, std::stop_token stop) {
  if (!config.encodes_only() || config.output != OutputKind::kLogits) {
    return make_error(ErrorCode::kInvalidArgument, "{} is no encoder with a head that predicts masked tokens",
                      config.name);
  }
  std::vector<std::vector<FilledMask>> masks(texts.size());
  std::vector<WholeText> whole;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (std::size_t at = 0; at < texts[i].size(); ++at) {
      if (texts[i][at] == options.mask) masks[i].push_back({.position = at});
    }
    if (masks[i].empty()) {
      return make_error(ErrorCode::kInvalidArgument, "text {} has {} tokens, and none of them is the mask", i + 1,
                        texts[i].size());
    }
    whole.push_back({texts[i], static_cast<std::int32_t>(masks[i].front().position),
                     static_cast<std::int32_t>(masks[i].back().position + 1)});
  }
  TextBatchOptions batches = options.batches;
  batches.kind = BatchKind::kEncode;
  batches.context = config.context;
  const auto vocab = static_cast<std::size_t>(config.vocab);
  const auto visit = [&](std::size_t index, std::span<const float> rows) -> Status {
    for (FilledMask& mask : masks[index]) {
      const std::size_t row = mask.position - masks[index].front().position;
      const std::span<const float> logits = rows.subspan(row * vocab, vocab);
      if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
        return make_error(ErrorCode::kBadData,
                          "text {} has logits at position {} that are not finite: the model's weights are damaged or "
                          "too large",
                          index + 1, mask.position);
      }
      mask.choices = choose(logits, options.choices);
    }
    return {};
  };
  BF_TRY(run_texts(pipeline, whole, batches, visit, std::move(stop)));
  return masks;
}

}  // namespace butterfly
