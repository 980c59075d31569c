#include "butterfly/infer/scheduler/generate.h"

#include <optional>

namespace butterfly {

Result<std::vector<Generation>> generate(Scheduler& scheduler, std::span<const Request> requests, const TextSink& sink,
                                         const std::stop_token& stop) {
  std::vector<Generation> generations(requests.size());
  std::vector<Scheduler::Id> submitted;
  std::optional<Error> failure;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto tell = [&sink, i](std::string_view text) {
      if (sink && !text.empty()) sink(i, text);
    };
    RequestObserver observer{.token = [tell](const TokenEvent& event) { tell(event.text); }, .rest = tell};
    observer.done = [&, i](Result<Generation> generation) {
      if (generation) {
        generations[i] = std::move(*generation);
      } else if (!failure) {
        failure = generation.error();
      }
    };
    const auto id = scheduler.submit({.request = requests[i]}, std::move(observer));
    if (!id) {
      for (const Scheduler::Id other : submitted) scheduler.cancel(other);
      failure = id.error();
      break;
    }
    submitted.push_back(*id);
  }
  const Status status = scheduler.run_until_idle(stop);
  if (!status && !failure) failure = status.error();
  if (failure) return tl::unexpected(*failure);
  return generations;
}

Result<std::vector<Generation>> generate(Pipeline& pipeline, const Tokenizer& tokenizer,
                                         std::span<const Request> requests, const GenerateOptions& options,
                                         const TextSink& sink, const std::stop_token& stop) {
  if (options.prefill_chunk <= 0) {
    return make_error(ErrorCode::kInvalidArgument, "the prefill chunk is {} tokens, it must be at least 1",
                      options.prefill_chunk);
  }
  Scheduler scheduler(pipeline, tokenizer,
                      {.context = options.context,
                       .vocab = options.vocab,
                       .rows_max = options.prefill_chunk,
                       .sequences_max = static_cast<int>(requests.size()),
                       .drafter = options.drafter});
  return generate(scheduler, requests, sink, stop);
}

}  // namespace butterfly
