#include "butterfly/infer/request/generate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "butterfly/infer/request/batch_schedule.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr float kLargestLogit = std::numeric_limits<float>::max();

/// The texts that one call works on: what was asked, what came, and what the pipeline shall compute next.
class Texts {
 public:
  Texts(const Tokenizer& tokenizer, std::span<const Request> requests, const GenerateOptions& options, int depth,
        const TextSink& sink)
      : tokenizer_(tokenizer),
        requests_(requests),
        options_(options),
        sink_(sink),
        schedule_({.rows_max = options.prefill_chunk, .depth = depth, .keep = options.cached != nullptr}),
        generations_(requests.size()) {}

  /// Errors: those of make_sampler().
  Status begin() {
    for (const Request& request : requests_) {
      schedule_.add(request.prompt, cached_tokens(request), request.encoded);
      streams_.push_back(make_text_stream(request, tokenizer_));
      BF_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(request, tokenizer_, options_.context));
      samplers_.push_back(std::move(sampler));
    }
    return {};
  }

  Schedule& schedule() { return schedule_; }

  /// Samples one token for every row of logits in `step`, streams its text, and ends texts that are complete.
  Status accept(Step& step) {
    const trace::Scope scope(trace::Zone::kInferSample);
    std::int64_t row = 0;
    for (const SequenceRun& run : step.batch.runs) {
      if (run.logit_rows() == 0) continue;
      const std::span<float> logits = step.tensor.row(row++);
      const auto index = static_cast<std::size_t>(run.sequence.value);
      if (generations_[index].reason == FinishReason::kCancelled) continue;
      Sampler& sampler = samplers_[index];
      BF_TRY(check(logits, sampler.tokens().size()));
      BF_ASSIGN_OR_RETURN(const SampledToken sampled, sampler.sample(logits));
      BF_TRY(accept(index, sampled));
    }
    return {};
  }

  void cancel() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!done_.contains(i)) (void)end(i, FinishReason::kCancelled);
    }
  }

  bool all_done() const { return done_.size() == requests_.size(); }
  std::vector<Generation> take() { return std::move(generations_); }

 private:
  std::size_t cached_tokens(const Request& request) const {
    if (options_.cached == nullptr || !request.encoded.empty()) return 0;
    const auto differs = std::ranges::mismatch(*options_.cached, request.prompt);
    return static_cast<std::size_t>(differs.in1 - options_.cached->begin());
  }

  /// Sums of finite weights can be too large for a float: then there is nothing to choose from.
  static Status check(std::span<const float> logits, std::size_t position) {
    const auto bad = std::ranges::find_if(logits, [](float logit) { return !(logit <= kLargestLogit); });
    if (bad == logits.end()) return {};
    return make_error(ErrorCode::kBadData,
                      "the model gives token {} at position {} a logit of {}, expected finite numbers: its weights are "
                      "damaged or too large",
                      bad - logits.begin(), position, *bad);
  }

  Status accept(std::size_t index, const SampledToken& sampled) {
    const Request& request = requests_[index];
    Generation& generation = generations_[index];
    const TokenId token = sampled.token;
    if (generation.tokens.empty()) generation.first_token_s = seconds();
    const bool may_end = !request.ignore_end || samplers_[index].has_grammar();
    if (may_end && tokenizer_.is_end(token)) return end(index, FinishReason::kEndToken);
    if (std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) {
      return end(index, FinishReason::kStop);
    }
    const SequenceId sequence(static_cast<std::int32_t>(index));
    BF_TRY(samplers_[index].accept(token));
    schedule_.append(sequence, token);
    generation.tokens.push_back(token);
    if (request.sampling.logprobs >= 0) generation.logprobs.push_back(sampled);
    emit(index, streams_[index].push(token));
    if (streams_[index].stopped()) return end(index, FinishReason::kStop);
    if (samplers_[index].complete()) return end(index, FinishReason::kEndToken);
    if (static_cast<int>(generation.tokens.size()) >= request.tokens_max) return end(index, FinishReason::kLength);
    if (static_cast<int>(schedule_.tokens(sequence).size()) >= options_.context) {
      return end(index, FinishReason::kContext);
    }
    return {};
  }

  void emit(std::size_t index, const std::string& text) {
    if (text.empty()) return;
    generations_[index].text += text;
    if (sink_) sink_(index, text);
  }

  Status end(std::size_t index, FinishReason reason) {
    emit(index, streams_[index].finish());
    generations_[index].reason = reason;
    generations_[index].total_s = seconds();
    done_.insert(index);
    schedule_.finish(SequenceId(static_cast<std::int32_t>(index)));
    return {};
  }

  double seconds() const { return static_cast<double>(trace::now_ns() - begin_ns_) * 1e-9; }

  const Tokenizer& tokenizer_;
  std::span<const Request> requests_;
  GenerateOptions options_;
  const TextSink& sink_;
  Schedule schedule_;
  std::vector<Sampler> samplers_;
  std::vector<TextStream> streams_;
  std::vector<Generation> generations_;
  std::set<std::size_t> done_;
  std::uint64_t begin_ns_ = trace::now_ns();
};

/// Submits what can be submitted and takes what comes back first.
Status advance(Pipeline& pipeline, Schedule& schedule, Texts& texts) {
  while (true) {
    BF_ASSIGN_OR_RETURN(std::optional<Step> step, schedule.next_step());
    if (!step) break;
    BF_TRY(pipeline.submit(std::move(*step)));
  }
  BF_ASSIGN_OR_RETURN(Step step, pipeline.next());
  schedule.completed(step);
  return texts.accept(step);
}

Status validate(std::span<const Request> requests, const GenerateOptions& options) {
  if (options.prefill_chunk <= 0) {
    return make_error(ErrorCode::kInvalidArgument, "the prefill chunk is {} tokens, it must be at least 1",
                      options.prefill_chunk);
  }
  if (options.cached != nullptr && requests.size() != 1) {
    return make_error(ErrorCode::kInvalidArgument, "a cache is kept for one request, {} were given", requests.size());
  }
  for (const Request& request : requests) {
    BF_TRY(validate(request.sampling));
    if (request.tokens_max <= 0) {
      return make_error(ErrorCode::kInvalidArgument, "{} tokens were asked for, at least 1 is needed",
                        request.tokens_max);
    }
    if (request.prompt.empty() || static_cast<int>(request.prompt.size()) >= options.context) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the prompt has {} tokens, the model's context of {} has room for 1 to {}",
                        request.prompt.size(), options.context, options.context - 1);
    }
    if (static_cast<int>(request.encoded.size()) > options.context) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the prompt has {} tokens for the encoder, the model's context of {} has room for 1 to {}",
                        request.encoded.size(), options.context, options.context);
    }
  }
  return {};
}

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kEndToken:
      return "end";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Result<std::vector<TokenId>> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  const TokenId bos = tokenizer.vocabulary().bos;
  if (text.empty()) {
    if (bos.value < 0)
      return make_error(ErrorCode::kInvalidArgument, "the prompt is empty and this model has no token to begin with");
    return std::vector<TokenId>{bos};
  }
  return tokenizer.encode(text);
}

Status set_prompt(const Tokenizer& tokenizer, const ModelConfig& config, std::string_view text, Request& request) {
  if (config.encodes_only() || config.output != OutputKind::kLogits) {
    return make_error(ErrorCode::kInvalidArgument, "{} continues no text: it is {}; see `butterfly embed`", config.name,
                      config.encodes_only() ? "an encoder" : "stored without a head that gives logits");
  }
  if (!config.has_decoder()) {
    BF_ASSIGN_OR_RETURN(request.prompt, encode_prompt(tokenizer, text));
    return {};
  }
  BF_ASSIGN_OR_RETURN(request.encoded, tokenizer.encode(text, {.add_eos = true}));
  const TokenId end = tokenizer.vocabulary().eos;
  const bool ended = tokenizer.vocabulary().add_eos;  // an encoder's text ends, whatever its files say
  if (!ended && end.value >= 0 && (request.encoded.empty() || request.encoded.back() != end))
    request.encoded.push_back(end);
  if (request.encoded.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt is empty, and this model has no token to end it with");
  }
  request.prompt = {TokenId{config.decoder_start}};
  return {};
}

/// Only a text that begins here loses the space that some vocabularies put in front.
static bool begins_text(const Request& request, const Tokenizer& tokenizer) {
  const bool first = request.prompt.size() == 1 && request.prompt[0] == tokenizer.vocabulary().bos;
  return first || !request.encoded.empty();
}

TextStream make_text_stream(const Request& request, const Tokenizer& tokenizer) {
  return {tokenizer, {.first_in_text = begins_text(request, tokenizer)}, request.stops, request.shown};
}

Result<Sampler> make_sampler(const Request& request, const Tokenizer& tokenizer, int context) {
  SamplerInput input{.prompt = request.prompt, .sample_index = request.sample_index};
  if (request.grammar) {
    GrammarMatcher::Options options{.first_in_text = begins_text(request, tokenizer)};
    options.tokens_max = std::min(request.tokens_max, context - static_cast<int>(request.prompt.size()));
    options.end_tokens = request.grammar->trie().end_tokens();
    options.end_tokens.insert(options.end_tokens.end(), request.stop_tokens.begin(), request.stop_tokens.end());
    BF_ASSIGN_OR_RETURN(input.matcher, GrammarMatcher::create(request.grammar, std::move(options)));
  }
  return Sampler(request.sampling, std::move(input));
}

Result<std::vector<Generation>> generate(Pipeline& pipeline, const Tokenizer& tokenizer,
                                         std::span<const Request> requests, const GenerateOptions& options,
                                         const TextSink& sink, std::stop_token stop) {
  BF_TRY(validate(requests, options));
  Texts texts(tokenizer, requests, options, pipeline.depth(), sink);
  BF_TRY(texts.begin());
  Schedule& schedule = texts.schedule();
  if (options.cached != nullptr) options.cached->clear();  // until all went well
  bool whole = true;
  while (!schedule.idle()) {
    const Status status = advance(pipeline, schedule, texts);
    if (stop.stop_requested()) texts.cancel();
    if (status) continue;
    if (texts.all_done()) {  // nobody waits for what was lost
      whole = false;
      break;
    }
    BF_TRY(pipeline.recover(status.error()));
    schedule.replay(pipeline.depth());
  }
  if (options.cached != nullptr && whole) {
    const auto tokens = schedule.tokens(SequenceId(0));
    options.cached->assign(tokens.begin(),
                           tokens.begin() + static_cast<std::ptrdiff_t>(schedule.submitted(SequenceId(0))));
  }
  return texts.take();
}

}  // namespace butterfly
