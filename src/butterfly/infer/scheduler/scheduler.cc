#include "butterfly/infer/scheduler/scheduler.h"

#include <algorithm>
#include <limits>

#include "butterfly/base/text/printable.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr float kLargestLogit = std::numeric_limits<float>::max();

/// Sums of finite weights can be too large for a float: then there is nothing to choose from.
Status check(std::span<const float> logits, std::size_t position) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return !(logit <= kLargestLogit); });
  if (bad == logits.end()) return {};
  return make_error(ErrorCode::kBadData,
                    "the model gives token {} at position {} a logit of {}, expected finite numbers: its weights are "
                    "damaged or too large",
                    bad - logits.begin(), position, *bad);
}

/// A step with such a token would fail, and with it the texts beside it.
Status check_tokens(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer, int vocab) {
  const auto outside = std::ranges::find_if(
      tokens, [&](TokenId token) { return token.value < 0 || (vocab > 0 && token.value >= vocab); });
  if (outside == tokens.end()) return {};
  return make_error(ErrorCode::kInvalidArgument, "the prompt has token {} ('{}'), the model has {}", outside->value,
                    printable(tokenizer.piece(*outside, Tokenizer::Control::kShown)), vocab);
}

Status validate(const Request& request, const Tokenizer& tokenizer, const SchedulerOptions& options) {
  BF_TRY(validate(request.sampling));
  if (request.tokens_max < (request.prompt_logprobs >= 0 ? 0 : 1)) {
    return make_error(ErrorCode::kInvalidArgument, "{} tokens were asked for, at least 1 is needed",
                      request.tokens_max);
  }
  BF_TRY(check_tokens(request.prompt, tokenizer, options.vocab));
  BF_TRY(check_tokens(request.encoded, tokenizer, options.vocab));
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const auto encoded = static_cast<std::int64_t>(request.encoded.size());
  if (prompt == 0 || prompt >= options.context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the prompt has {} tokens, the model's context of {} has room for 1 to {}", prompt,
                      options.context, options.context - 1);
  }
  if (encoded > options.context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the prompt has {} tokens for the encoder, the model's context of {} has room for 1 to {}",
                      encoded, options.context, options.context);
  }
  const std::int64_t longest = std::max(encoded, std::min<std::int64_t>(prompt + request.tokens_max, options.context));
  if (options.cache_tokens > 0 && longest > options.cache_tokens) {
    return make_error(ErrorCode::kNoMemory, "{} tokens of prompt and answer need room in the cache, it has room for {}",
                      longest, options.cache_tokens);
  }
  return {};
}

std::optional<std::int64_t> pages_of(const SchedulerOptions& options) {
  if (options.cache_tokens <= 0) return std::nullopt;
  return PageTables::pages_for(options.cache_tokens);
}

trace::Work sampled_from(std::span<const float> logits) {
  return {.number = 1, .in = static_cast<std::uint32_t>(logits.size()), .out = 1, .bytes = logits.size_bytes()};
}

bool is_stop(const Request& request, TokenId token) {
  return std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
}

}  // namespace

struct Scheduler::Text {
  Text(Submission submission, RequestObserver to_tell, Sampler drawn_by, TextStream shown_by)
      : asked(std::move(submission)),
        observer(std::move(to_tell)),
        sampler(std::move(drawn_by)),
        stream(std::move(shown_by)) {}

  double seconds() const { return static_cast<double>(trace::now_ns() - begin_ns) * 1e-9; }

  Id id = 0;
  const Submission asked;
  const RequestObserver observer;
  Sampler sampler;
  TextStream stream;
  Generation generation{};
  SequenceId sequence{};
  bool guessed = false;    // its newest token, whose logits are in the next row
  bool cancelled = false;  // while no scheduler had it
  const std::uint64_t begin_ns = trace::now_ns();
};

void Scheduler::Delete::operator()(Text* text) const {
  delete text;
}

Scheduler::Scheduler(Pipeline& pipeline, const Tokenizer& tokenizer, const SchedulerOptions& options)
    : pipeline_(pipeline),
      tokenizer_(tokenizer),
      options_(options),
      schedule_({.rows_max = options.rows_max,
                 .depth = pipeline.depth(),
                 .pages_max = pages_of(options),
                 .keep = options.keep_prefixes,
                 .slowdown_max = options.slowdown_max}) {
  stats_.cache_pages_max = pages_of(options).value_or(0);
}

Scheduler::~Scheduler() {
  if (!trace::recording()) return;
  trace::set_fact("tokens.prompt", static_cast<double>(stats_.prompt_tokens));
  trace::set_fact("tokens.generated", static_cast<double>(stats_.generated_tokens));
}

Result<Scheduler::Id> Scheduler::submit(Submission submission, RequestObserver observer) {
  BF_TRY(validate(submission.request, tokenizer_, options_));
  BF_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(submission.request, tokenizer_, options_.context));
  TextStream stream = make_text_stream(submission.request, tokenizer_);
  TextPtr text(new Text(std::move(submission), std::move(observer), std::move(sampler), std::move(stream)));
  const std::lock_guard lock(mutex_);
  if (options_.waiting_max > 0 && line_.size() >= options_.waiting_max) {
    ++stats_.refused;
    return make_error(ErrorCode::kUnavailable, "{} requests wait already, no more than {} may", line_.size(),
                      options_.waiting_max);
  }
  ++stats_.submitted;
  return add(std::move(text));
}

/// Under the lock.
Scheduler::Id Scheduler::add(TextPtr text) {
  const Id id = text->id = next_id_++;
  line_.add({.id = id, .priority = text->asked.priority, .user = text->asked.user, .since = Clock::now()});
  if (text->cancelled) cancelled_.insert(id);
  stats_.waiting = line_.size();
  waiting_.emplace(id, std::move(text));
  changed_.notify_all();
  return id;
}

Scheduler::Id Scheduler::take_over(TextPtr text) {
  const std::lock_guard lock(mutex_);
  return add(std::move(text));
}

std::vector<Scheduler::TextPtr> Scheduler::give_up() {
  std::vector<TextPtr> texts;
  for (auto& [sequence, text] : running_) {
    schedule_.finish(sequence);
    if (options_.drafter) options_.drafter->forget(sequence);
    text->guessed = false;
    texts.push_back(std::move(text));
  }
  running_.clear();
  const std::lock_guard lock(mutex_);
  for (auto& [id, text] : waiting_) {
    line_.remove(id);
    texts.push_back(std::move(text));
  }
  waiting_.clear();
  for (const auto& text : texts) text->cancelled = cancelled_.contains(text->id);
  stats_.waiting = stats_.running = 0;
  stats_.cache_pages = stats_.cache_pages_kept = 0;  // the nodes that had them are gone
  return texts;
}

Scheduler::Id Scheduler::id_of(const Text& text) {
  return text.id;
}

void Scheduler::cancel(Id id) {
  const std::lock_guard lock(mutex_);
  if (id >= next_id_) return;
  cancelled_.insert(id);
  changed_.notify_all();
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Status Scheduler::run_until_idle(const std::stop_token& stop) {
  return loop(stop, false);
}

Status Scheduler::run(const std::stop_token& stop) {
  return loop(stop, true);
}

Status Scheduler::loop(const std::stop_token& stop, bool forever) {
  trace::name_thread("scheduler");
  while (true) {
    trace::Scope turn(trace::Zone::kStepTurn);
    {
      const trace::Scope scope(trace::Zone::kPhaseSchedule);
      take_changes(stop.stop_requested());
      publish();
    }
    turn.set_work({.number = static_cast<std::uint32_t>(running_.size())});
    if (schedule_.idle()) {
      turn.drop();
      if (!(forever ? wait_for_requests(stop) : has_waiting())) return {};
      continue;
    }
    const Status status = advance();
    if (status) continue;
    take_changes(stop.stop_requested());
    submitted_ns_.clear();
    if (running_.empty() && !forever) {  // nobody waits for what was lost
      schedule_.replay(pipeline_.depth());
      return {};
    }
    const Status recovered = pipeline_.recover(status.error());
    if (!recovered) end_all(recovered.error());
    schedule_.replay(pipeline_.depth());
    if (!recovered && !forever) return recovered;
    const std::lock_guard lock(mutex_);
    ++stats_.recovered;
  }
}

bool Scheduler::has_waiting() const {
  const std::lock_guard lock(mutex_);
  return !waiting_.empty();
}

bool Scheduler::wait_for_requests(const std::stop_token& stop) {
  const trace::Scope scope(trace::Zone::kWaitRequest);
  std::unique_lock lock(mutex_);
  return changed_.wait(lock, stop, [&] { return !waiting_.empty(); });
}

/// Ends what was cancelled or is too late, and begins what there is room for.
void Scheduler::take_changes(bool stopping) {
  std::vector<TextPtr> ended;
  std::set<Id> cancelled;
  {
    const std::lock_guard lock(mutex_);
    cancelled = std::exchange(cancelled_, {});
    const auto now = Clock::now();
    const auto too_late = [&](const Text& text) {
      return stopping || cancelled.contains(text.id) || (text.asked.deadline && now >= *text.asked.deadline);
    };
    for (auto& [id, text] : waiting_) {
      if (too_late(*text)) ended.push_back(std::move(text));
    }
    for (const auto& text : ended) {
      line_.remove(text->id);
      waiting_.erase(text->id);
    }
    for (auto& [sequence, text] : running_) {
      if (too_late(*text)) cancelled.insert(text->id);
    }
    begin_waiting();
  }
  for (const auto& text : ended) {
    text->generation.reason = FinishReason::kCancelled;
    text->generation.total_s = text->seconds();
    finish(*text, std::move(text->generation));
  }
  std::vector<Text*> stopped;
  for (auto& [sequence, text] : running_) {
    if (cancelled.contains(text->id)) stopped.push_back(text.get());
  }
  for (Text* text : stopped) end(*text, FinishReason::kCancelled);
}

/// Under the lock.
void Scheduler::begin_waiting() {
  while (static_cast<int>(running_.size()) < options_.sequences_max) {
    const Waiter* next = line_.next(Clock::now());
    if (next == nullptr) break;
    const Request& request = waiting_.at(next->id)->asked.request;
    const std::vector<TokenId>& written = waiting_.at(next->id)->generation.tokens;  // by another scheduler
    std::vector<TokenId> tokens = request.prompt;
    tokens.insert(tokens.end(), written.begin(), written.end());
    const auto length = static_cast<std::int64_t>(std::max(tokens.size(), request.encoded.size()));
    if (!running_.empty() && !schedule_.has_room(length)) break;
    TextPtr text = std::move(waiting_.at(next->id));
    waiting_.erase(text->id);
    line_.remove(text->id);
    line_.charge(text->asked.user, std::ssize(tokens));
    if (written.empty()) text->generation.waited_s = text->seconds();
    text->sequence = schedule_.add(std::move(tokens), request.encoded, request.prompt_logprobs >= 0);
    running_.emplace(text->sequence, std::move(text));
  }
  std::vector<std::string> users;
  for (const auto& [sequence, text] : running_) users.push_back(text->asked.user);
  line_.settle(users);
}

/// Submits what can be submitted and takes what comes back first.
Status Scheduler::advance() {
  while (true) {
    trace::Scope scope(trace::Zone::kPhaseSchedule);
    BF_ASSIGN_OR_RETURN(std::optional<Step> step, schedule_.next_step());
    scope.end();
    if (!step) break;
    submitted_ns_.push_back(trace::now_ns());
    BF_TRY(pipeline_.submit(std::move(*step)));
  }
  BF_ASSIGN_OR_RETURN(Step step, pipeline_.next());
  const std::uint64_t now = trace::now_ns();
  const double seconds = static_cast<double>(now - std::max(submitted_ns_.front(), completed_ns_)) * 1e-9;
  submitted_ns_.pop_front();
  completed_ns_ = now;
  schedule_.completed(step, seconds);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.steps;
    stats_.rows += static_cast<std::uint64_t>(step.batch.rows());
    stats_.busy_s += seconds;
  }
  for (const SequenceRun& run : step.batch.runs) {
    if (run.logits_from > 0 || run.position == 0)
      trace::add(trace::Counter::kInferTokensPrefilled, static_cast<std::uint64_t>(run.rows));
  }
  std::int64_t row = 0;
  for (const SequenceRun& run : step.batch.runs) take_logits(run, step, row);
  return {};
}

/// The rows of one run, from `row` on, which is then the first of the next.
void Scheduler::take_logits(const SequenceRun& run, Step& step, std::int64_t& row) {
  const auto found = running_.find(run.sequence);
  Text* text = found == running_.end() ? nullptr : found->second.get();
  for (std::int32_t i = run.logits_from; i < run.logits_from + run.logit_rows(); ++i, ++row) {
    if (text == nullptr) continue;
    const std::span<float> logits = step.tensor.row(row);
    const auto next = static_cast<std::size_t>(run.position + i + 1);
    const bool draws = next >= schedule_.tokens(run.sequence).size();
    Status status = draws ? draw(*text, next, logits) : read_prompt(*text, next, logits);
    if (!status) {
      schedule_.finish(run.sequence);
      finish(*text, tl::unexpected(status.error()));
    }
    if (!running_.contains(run.sequence)) {
      text = nullptr;
    } else if (draws && !text->guessed) {  // further rows follow a guess that was wrong
      propose(*text);
      text = nullptr;
    }
  }
}

/// Lets the drafter guess what follows, no further than this text goes.
void Scheduler::propose(Text& text) {
  if (!options_.drafter) return;
  const trace::Scope scope(trace::Zone::kPhaseSchedule);
  const std::span<const TokenId> tokens = schedule_.tokens(text.sequence);
  const std::int64_t left = std::min<std::int64_t>(text.asked.request.tokens_max - std::ssize(text.generation.tokens),
                                                   options_.context - std::ssize(tokens));
  const int most = schedule_.draft_max(text.sequence, options_.drafter->seconds_per_token());
  if (left <= 1 || most <= 0) return;
  auto draft = options_.drafter->propose(text.sequence, tokens,
                                         static_cast<std::size_t>(std::min<std::int64_t>(left - 1, most)));
  if (draft) schedule_.propose(text.sequence, std::move(*draft));
}

/// What the model thought of the prompt's token at `position`; after a replay it thinks the same.
Status Scheduler::read_prompt(Text& text, std::size_t position, std::span<float> logits) {
  const Request& request = text.asked.request;
  const trace::Scope scope(trace::Zone::kSample, sampled_from(logits));
  BF_TRY(check(logits, position));
  std::vector<SampledToken>& logprobs = text.generation.prompt_logprobs;
  if (request.prompt_logprobs < 0 || logprobs.size() + 1 != position || position >= request.prompt.size()) return {};
  logprobs.push_back(log_probabilities(logits, request.prompt[position], request.prompt_logprobs));
  return {};
}

/// The next token of a text.
Status Scheduler::draw(Text& text, std::size_t position, std::span<float> logits) {
  Generation& generation = text.generation;
  trace::Scope scope(trace::Zone::kSample, sampled_from(logits));
  BF_TRY(check(logits, position));
  if (generation.tokens.empty()) {
    generation.first_token_s = text.seconds();
    generation.cached_tokens = schedule_.cached_tokens(text.sequence);
  }
  if (text.asked.request.tokens_max == 0) {
    end(text, FinishReason::kLength);
    return {};
  }
  BF_ASSIGN_OR_RETURN(const SampledToken sampled, text.sampler.sample(logits));
  scope.end();
  const auto note_last = [&] {
    if (text.asked.request.sampling.logprobs >= 0) generation.last = sampled;
  };
  const bool may_end = !text.asked.request.ignore_end || text.sampler.has_grammar();
  if (may_end && tokenizer_.is_end(sampled.token)) {
    note_last();
    end(text, FinishReason::kEndToken);
  } else if (is_stop(text.asked.request, sampled.token)) {
    note_last();
    end(text, FinishReason::kStop);
  } else {
    BF_TRY(text.sampler.accept(sampled.token));
    accept(text, sampled);
  }
  return {};
}

/// Streams the text of a token, and ends a text that is complete with it.
void Scheduler::accept(Text& text, const SampledToken& sampled) {
  const Request& request = text.asked.request;
  Generation& generation = text.generation;
  text.guessed = schedule_.append(text.sequence, sampled.token);
  generation.tokens.push_back(sampled.token);
  trace::add(trace::Counter::kInferTokensDecoded, 1);
  generation.guessed_tokens += text.guessed ? 1 : 0;
  if (request.sampling.logprobs >= 0) generation.logprobs.push_back(sampled);
  trace::Scope scope(trace::Zone::kTextDecode, {.number = 1});
  const std::string piece = text.stream.push(sampled.token);
  generation.text += piece;
  scope.end();
  if (text.observer.token) {
    const trace::Scope telling(trace::Zone::kTell, {.bytes = piece.size()});
    text.observer.token({.sampled = sampled, .text = piece});
  }
  if (text.stream.stopped()) return end(text, FinishReason::kStop);
  if (text.sampler.complete()) return end(text, FinishReason::kEndToken);
  if (static_cast<int>(generation.tokens.size()) >= request.tokens_max) return end(text, FinishReason::kLength);
  if (static_cast<int>(schedule_.tokens(text.sequence).size()) >= options_.context) end(text, FinishReason::kContext);
}

void Scheduler::end(Text& text, FinishReason reason) {
  trace::Scope scope(trace::Zone::kTextDecode, {.number = 1});
  const std::string rest = text.stream.finish();
  scope.end();
  text.generation.text += rest;
  if (!rest.empty() && text.observer.rest) text.observer.rest(rest);
  text.generation.reason = reason;
  text.generation.total_s = text.seconds();
  schedule_.finish(text.sequence);
  finish(text, std::move(text.generation));
}

/// Tells the last of a text, which is gone then.
void Scheduler::finish(Text& text, Result<Generation> generation) {
  {
    const std::lock_guard lock(mutex_);
    if (!generation) {
      ++stats_.failed;
    } else {
      ++(generation->reason == FinishReason::kCancelled ? stats_.cancelled : stats_.finished);
      stats_.prompt_tokens += text.asked.request.prompt.size() + text.asked.request.encoded.size();
      stats_.cached_tokens += static_cast<std::uint64_t>(generation->cached_tokens);
      stats_.generated_tokens += generation->tokens.size();
      line_.charge(text.asked.user, static_cast<std::int64_t>(generation->tokens.size()));
    }
  }
  const auto found = running_.find(text.sequence);
  const TextPtr keep = found != running_.end() && found->second.get() == &text ? std::move(found->second) : nullptr;
  if (keep) {
    running_.erase(found);
    if (options_.drafter) options_.drafter->forget(text.sequence);
  }
  const trace::Scope scope(trace::Zone::kTell, {.number = 1});
  if (text.observer.done) text.observer.done(std::move(generation));
}

/// Those that wait, too: they would fare no better.
void Scheduler::end_all(const Error& error) {
  std::map<Id, TextPtr> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    for (const auto& [id, text] : waiting) line_.remove(id);
  }
  while (!running_.empty()) {
    Text& text = *running_.begin()->second;
    schedule_.finish(text.sequence);
    finish(text, tl::unexpected(error));
  }
  for (const auto& [id, text] : waiting) finish(*text, tl::unexpected(error));
}

void Scheduler::publish() {
  const std::int64_t kept = options_.keep_prefixes ? schedule_.pages_kept() : 0;
  const std::lock_guard lock(mutex_);
  stats_.waiting = line_.size();
  stats_.running = running_.size();
  stats_.cache_pages = schedule_.pages_used();
  stats_.cache_pages_kept = kept;
  stats_.preempted = schedule_.preempted();
  stats_.drafted_tokens = schedule_.drafted();
  stats_.accepted_tokens = schedule_.accepted();
}

}  // namespace butterfly
