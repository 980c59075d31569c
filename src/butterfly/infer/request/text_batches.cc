#include "butterfly/infer/request/text_batches.h"
#include "butterfly/trace/trace.h"

#include <algorithm>
#include <numeric>

namespace butterfly {
namespace {

Status check_texts(std::span<const WholeText> texts, int context) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(texts[i].tokens.size());
    if (tokens < 1 || tokens > context) {
      return make_error(ErrorCode::kInvalidArgument, "text {} has {} tokens, the model's context has room for 1 to {}",
                        i + 1, tokens, context);
    }
  }
  return {};
}

/// Texts by falling length, cut into batches of up to rows_max tokens.
class TextBatches {
 public:
  TextBatches(std::span<const WholeText> texts, const TextBatchOptions& options) : texts_(texts), kind_(options.kind) {
    std::vector<std::size_t> order(texts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return texts[i].tokens.size(); });
    std::size_t rows = 0;
    for (const std::size_t index : order) {
      rows += texts[index].tokens.size();
      if (batches_.empty() || rows > static_cast<std::size_t>(options.rows_max)) {
        batches_.emplace_back();
        rows = texts[index].tokens.size();
      }
      batches_.back().push_back(index);
    }
  }

  std::size_t size() const { return batches_.size(); }
  const std::vector<std::size_t>& batch(std::size_t number) const { return batches_[number]; }

  /// Releases what the step before it left, unless that was of a pipeline that is gone. Errors: kNoMemory.
  Result<Step> step(std::size_t number, std::size_t first_of_pipeline) const {
    Step step;
    step.id = number + 1;
    step.batch.kind = kind_;
    if (number > first_of_pipeline) {
      for (const std::size_t index : batches_[number - 1]) step.release.push_back(sequence(index));
    }
    if (number == batches_.size()) return step;
    std::vector<std::int32_t> tokens;
    for (const std::size_t index : batches_[number]) {
      const WholeText& text = texts_[index];
      SequenceRun run{.sequence = sequence(index)};
      run.rows = static_cast<std::int32_t>(text.tokens.size());
      run.logits_from = text.rows_from;
      run.logits_to = text.rows_to;
      step.batch.runs.push_back(run);
      for (const TokenId token : text.tokens) tokens.push_back(token.value);
    }
    BF_ASSIGN_OR_RETURN(step.tensor,
                        Tensor::allocate(*Pool::shared(), DType::kI32, {static_cast<std::int64_t>(tokens.size())}));
    std::ranges::copy(tokens, step.tensor.mutable_view().values<std::int32_t>().begin());
    return step;
  }

 private:
  static SequenceId sequence(std::size_t index) { return SequenceId(static_cast<std::int32_t>(index)); }

  std::span<const WholeText> texts_;
  BatchKind kind_;
  std::vector<std::vector<std::size_t>> batches_;
};

Status visit_rows(const Step& step, const std::vector<std::size_t>& indices, const TextVisitor& visit) {
  const std::span<const float> values = step.tensor.view().values();
  const auto texts = static_cast<std::uint32_t>(indices.size());
  const trace::Scope scope(trace::Zone::kSample, {.number = texts, .bytes = values.size_bytes()});
  const std::size_t width = values.size() / static_cast<std::size_t>(step.batch.logit_rows());
  std::size_t at = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const SequenceRun& run = step.batch.runs[i];
    const std::size_t count = static_cast<std::size_t>(run.logit_rows()) * width;
    BF_TRY(visit(indices[i], values.subspan(at, count)));
    at += count;
  }
  return {};
}

}  // namespace

Status run_texts(Pipeline& pipeline, std::span<const WholeText> texts, const TextBatchOptions& options,
                 const TextVisitor& visit, std::stop_token stop) {
  BF_TRY(check_texts(texts, options.context));
  const TextBatches batches(texts, options);
  std::uint64_t texts_done = 0;
  std::size_t done = 0;  // steps; those up to `submitted` are under way
  std::size_t submitted = 0;
  std::size_t first_of_pipeline = 0;
  const std::size_t steps = batches.size() + 1;  // the last only releases
  while (done < steps) {
    if (stop.stop_requested()) {
      return make_error(ErrorCode::kCancelled, "cancelled after {} of {} texts", texts_done, texts.size());
    }
    const trace::Scope turn(trace::Zone::kStepTurn);
    Status sent;
    while (sent && submitted < steps && submitted <= done + static_cast<std::size_t>(pipeline.depth())) {
      BF_ASSIGN_OR_RETURN(Step step, batches.step(submitted, first_of_pipeline));
      sent = pipeline.submit(std::move(step));
      if (sent) ++submitted;
    }
    const Result<Step> step = sent ? pipeline.next() : tl::unexpected(sent.error());
    if (!step) {
      if (done == batches.size()) return {};  // nobody waits for what was lost
      BF_TRY(pipeline.recover(step.error()));
      submitted = first_of_pipeline = done;
      continue;
    }
    if (done < batches.size()) {
      BF_TRY(visit_rows(*step, batches.batch(done), visit));
      texts_done += batches.batch(done).size();
      if (options.progress) options.progress(texts_done, texts.size());
    }
    ++done;
  }
  return {};
}

}  // namespace butterfly
