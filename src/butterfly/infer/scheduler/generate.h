// Text in, text out: requests are computed side by side until all have ended.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/infer/request/request.h"
#include "butterfly/infer/scheduler/scheduler.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct GenerateOptions {
  int prefill_chunk = 512;             // prompt tokens per step
  int context = 0;                     // the model's
  int vocab = 0;                       // as SchedulerOptions::vocab
  std::shared_ptr<Drafter> drafter{};  // as SchedulerOptions::drafter
};

/// Called with each piece of text of request `index` as it comes; pieces join to Generation::text.
using TextSink = std::function<void(std::size_t index, std::string_view text)>;

/// Continues every request. When nodes die, the texts go on over those that remain: the tokens so far are replayed, and
/// the reader sees a pause and the same text. A requested `stop` ends all texts as kCancelled with what they have.
/// Errors: kInvalidArgument (a prompt longer than the context, an option out of range), those of the pipeline
/// that it cannot recover from.
Result<std::vector<Generation>> generate(Pipeline& pipeline, const Tokenizer& tokenizer,
                                         std::span<const Request> requests, const GenerateOptions& options,
                                         const TextSink& sink, const std::stop_token& stop = {});

/// The same by a scheduler that nobody else uses, and that keeps what it has cached for the next call.
Result<std::vector<Generation>> generate(Scheduler& scheduler, std::span<const Request> requests, const TextSink& sink,
                                         const std::stop_token& stop = {});

}  // namespace butterfly
