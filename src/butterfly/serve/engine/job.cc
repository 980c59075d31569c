#include "butterfly/serve/engine/job.h"

#include <algorithm>

#include "butterfly/base/json.h"
#include "butterfly/base/log.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kTicksPerSweep = 4;
constexpr std::size_t kJobBytes = 2048;  // of one, whatever it holds

HttpAnswer with_headers(HttpAnswer answer, const HttpHeaders& more) {
  answer.headers.insert(answer.headers.end(), more.begin(), more.end());
  return answer;
}

AnswerPiece shown_piece(const Tokenizer& tokenizer, const SampledToken& sampled) {
  const auto name = [&tokenizer](TokenId token) { return tokenizer.piece(token, Tokenizer::Control::kShown); };
  AnswerPiece piece{.shown = {.token = name(sampled.token), .logprob = sampled.logprob}};
  for (const TokenLogprob& top : sampled.top) piece.top.push_back({.token = name(top.token), .logprob = top.logprob});
  return piece;
}

}  // namespace

/// One computation of a job's texts. Their tokens come in any order; they are written in turns, one of each, so that
/// the order of events depends on nothing else.
struct Job::Run {
  using Item = std::variant<AnswerPiece, Result<Generation>>;
  struct Choice {
    std::deque<Item> items{};
    bool ended = false;
    bool counts_prompt = false;  // the first of the texts of its prompt
    std::size_t prompt_tokens = 0;
    std::string echo{};             // the prompt, where the answer begins with it
    std::vector<TokenId> prompt{};  // the same as tokens, where their log-probabilities are shown
    bool waits_for_end = false;     // which has those of the prompt
  };
  std::unique_ptr<AnswerWriter> writer{};
  std::vector<Choice> choices{};
  std::vector<Scheduler::Id> ids{};
  std::size_t turn = 0;
  std::size_t left = 0;
  bool dead = false;  // its reader went away
  bool shows_logprobs = false;
  AnswerUsage usage{};
};

class Job::Source final : public HttpSource {
 public:
  Source(std::shared_ptr<Job> job, std::shared_ptr<Reader> reader) : job_(std::move(job)), reader_(std::move(reader)) {}
  State read(std::string& out, std::size_t bytes) override { return job_->read(*reader_, out, bytes); }
  std::string_view sign_of_life() const override { return ": the answer is being computed\n\n"; }

 private:
  const std::shared_ptr<Job> job_;
  const std::shared_ptr<Reader> reader_;
};

Job::State Job::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::size_t Job::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  if (!begun_ || state_ == State::kRunning || !readers_.empty()) return 0;
  return kJobBytes + entry_.body.size() + events_bytes_ + (whole_ ? whole_->body.size() : 0);
}

bool Job::is_over(Clock::time_point now, std::chrono::seconds retention) const {
  const std::lock_guard lock(mutex_);
  return readers_.empty() && state_ != State::kRunning && now - since_ > retention;
}

void Job::forget() {
  const std::lock_guard lock(mutex_);
  state_ = State::kForgotten;
  events_.clear();
  whole_.reset();
}

std::shared_ptr<Job::Run> Job::make_run(const GenerationBody& body, PreparedText& prepared) const {
  auto run = std::make_shared<Run>();
  const auto samples = static_cast<std::size_t>(body.samples);
  AnswerSettings settings{.id = entry_.id,
                          .created = entry_.created,
                          .model = store_.engine().name(),
                          .stream = body.stream,
                          .include_usage = body.include_usage,
                          .logprobs = body.sampling.logprobs >= 0,
                          .choices = prepared.prompts.size() * samples,
                          .parser = prepared.answer,
                          .tool_choice = body.tool_choice,
                          .parallel_tool_calls = body.parallel_tool_calls,
                          .shown = body.shown};
  run->shows_logprobs = settings.logprobs;
  run->left = settings.choices;
  run->choices.resize(settings.choices);
  run->writer = make_answer_writer(body.endpoint, std::move(settings));
  run->writer->begin();
  std::vector<Request> texts;
  for (std::size_t i = 0; i < run->choices.size(); ++i) {
    Request request = prepared.prompts[i / samples];
    Run::Choice& choice = run->choices[i];
    choice.counts_prompt = i % samples == 0;
    choice.prompt_tokens = request.encoded.empty() ? request.prompt.size() : request.encoded.size();
    if (choice.counts_prompt) run->usage.prompt_tokens += choice.prompt_tokens;
    if (body.echo) {
      choice.echo = prepared.texts[i / samples];
      choice.waits_for_end = run->shows_logprobs;
      if (choice.waits_for_end) choice.prompt = request.prompt;
      if (!choice.waits_for_end) run->writer->prompt(i, choice.echo, {});
    }
    request.sample_index = i % samples;
    texts.push_back(std::move(request));
  }
  prepared.prompts = std::move(texts);
  return run;
}

std::optional<ApiError> Job::start() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kRunning || state_ == State::kDone) return std::nullopt;
    if (state_ == State::kForgotten || store_.stopping()) {
      return ApiError{.status = 503, .message = "the server is about to end", .code = "unavailable"};
    }
    state_ = State::kRunning;
    begun_ = true;
  }
  GenerationBody body;
  PreparedText prepared;
  ApiJson json;
  std::optional<ApiError> error = parse_body(entry_.body, json);
  if (!error) error = read_generation_body(entry_.endpoint, json, body);
  if (!error) error = store_.engine().prepare(body, entry_.seed, entry_.created, prepared);
  if (!error) {
    const auto run = make_run(body, prepared);
    {
      const std::lock_guard lock(mutex_);
      stream_ = body.stream;
      run_ = run;
      since_ = Clock::now();
    }
    error = submit(run, std::move(prepared), -body.priority);
  }
  if (!error) return std::nullopt;
  const std::lock_guard lock(mutex_);
  state_ = State::kWaiting;
  run_.reset();
  events_.clear();
  events_bytes_ = 0;
  return error;
}

std::optional<ApiError> Job::submit(const std::shared_ptr<Run>& run, PreparedText prepared, int priority) {
  std::vector<Scheduler::Id> ids;
  std::optional<ApiError> error;
  for (std::size_t i = 0; i < prepared.prompts.size() && !error; ++i) {
    Submission submission{.request = std::move(prepared.prompts[i]), .priority = priority, .user = entry_.user};
    const auto id = store_.engine().submit(std::move(submission), observer(run, i));
    if (id) {
      ids.push_back(*id);
    } else {
      error = to_api_error(id.error());
      if (id.error().code == ErrorCode::kUnavailable) {
        error->status = 429;
        error->code = "queue_full";
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (error) run->dead = true;
    run->ids = ids;
    if (!run->dead) ids.clear();
  }
  for (const Scheduler::Id id : ids) store_.engine().cancel(id);
  return error;
}

RequestObserver Job::observer(const std::shared_ptr<Run>& run, std::size_t choice) {
  const auto self = shared_from_this();
  return {
      .token =
          [self, run, choice, last = Clock::time_point()](const TokenEvent& event) mutable {
            const auto now = Clock::now();
            if (last != Clock::time_point()) {
              self->store_.metrics().gap_s.add(std::chrono::duration<double>(now - last).count());
            }
            last = now;
            AnswerPiece piece;
            if (run->shows_logprobs) piece = shown_piece(self->store_.engine().tokenizer(), event.sampled);
            piece.text = event.text;
            self->take(run, choice, std::move(piece));
          },
      .rest =
          [self, run, choice](std::string_view text) {
            if (!text.empty()) self->take(run, choice, AnswerPiece{.text = std::string(text), .is_token = false});
          },
      .done = [self, run, choice](Result<Generation> generation) { self->take(run, choice, std::move(generation)); },
  };
}

void Job::take(const std::shared_ptr<Run>& run, std::size_t choice, Run::Item item) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    if (run->dead || run_ != run) return;
    run->choices[choice].items.push_back(std::move(item));
    pump(*run, effects);
  }
  perform(std::move(effects));
}

void Job::pump(Run& run, Effects& effects) {
  while (run.left > 0 && !run.dead) {
    Run::Choice& choice = run.choices[run.turn];
    if (!choice.ended) {
      if (choice.items.empty()) break;
      if (choice.waits_for_end && !show_prompt(run, run.turn)) break;
      Run::Item item = std::move(choice.items.front());
      choice.items.pop_front();
      if (const auto* piece = std::get_if<AnswerPiece>(&item)) {
        run.writer->piece(run.turn, *piece);
      } else {
        const auto& generation = std::get<Result<Generation>>(item);
        const bool cut = store_.stopping() && (!generation || generation->reason == FinishReason::kCancelled);
        if (cut) return cut_short(effects);
        if (!generation) {
          run.writer->fail(to_api_error(generation.error()));
          append_events(run, effects);
          effects.cancel = run.ids;
          store_.metrics().count_finished("error");
          return complete(to_answer(to_api_error(generation.error())), effects);
        }
        note_end(run, run.turn, *generation);
      }
    }
    run.turn = (run.turn + 1) % run.choices.size();
  }
  if (run.left == 0) {
    run.writer->finish(run.usage);
    append_events(run, effects);
    HttpAnswer answer;
    if (!stream_) {
      answer.headers.emplace_back("Content-Type", "application/json");
      answer.body = dump_json(run.writer->whole(run.usage)) + "\n";
    }
    return complete(std::move(answer), effects);
  }
  append_events(run, effects);
}

bool Job::show_prompt(Run& run, std::size_t number) const {
  Run::Choice& choice = run.choices[number];
  const auto* generation = std::get_if<Result<Generation>>(&choice.items.back());
  if (generation == nullptr) return false;
  choice.waits_for_end = false;
  if (!*generation) return true;
  const Tokenizer& tokenizer = store_.engine().tokenizer();
  std::vector<AnswerPiece> pieces;
  for (std::size_t i = 0; i < choice.prompt.size(); ++i) {
    const auto& known = (*generation)->prompt_logprobs;
    AnswerPiece piece =
        shown_piece(tokenizer, i > 0 && i <= known.size() ? known[i - 1] : SampledToken{choice.prompt[i]});
    piece.has_logprob = i > 0 && i <= known.size();
    piece.text = tokenizer.piece(choice.prompt[i]);
    pieces.push_back(std::move(piece));
  }
  run.writer->prompt(number, choice.echo, pieces);
  return true;
}

void Job::note_end(Run& run, std::size_t number, const Generation& generation) {
  Run::Choice& choice = run.choices[number];
  choice.ended = true;
  --run.left;
  run.usage.generated_tokens += generation.tokens.size();
  if (choice.counts_prompt) run.usage.cached_tokens += static_cast<std::size_t>(generation.cached_tokens);
  // A prompt that is shown with its log-probabilities has one more token behind it, whatever that was: lm-eval counts
  // from the end.
  if (!choice.prompt.empty() && generation.last) {
    run.writer->piece(number, shown_piece(store_.engine().tokenizer(), *generation.last));
  }
  run.writer->end(number, generation.reason);
  Metrics& metrics = store_.metrics();
  metrics.count_finished(finish_reason(generation.reason, false));
  metrics.first_token_s.add(generation.first_token_s);
  metrics.request_s.add(generation.total_s);
  metrics.queue_s.add(generation.waited_s);
  metrics.prefill_s.add(std::max(0.0, generation.first_token_s - generation.waited_s));
  metrics.decode_s.add(std::max(0.0, generation.total_s - generation.first_token_s));
  metrics.prompt_tokens.add(static_cast<double>(choice.prompt_tokens));
  metrics.generated_tokens.add(static_cast<double>(generation.tokens.size()));
  const auto tokens = static_cast<double>(generation.tokens.size());
  if (tokens > 1) metrics.token_s.add((generation.total_s - generation.first_token_s) / (tokens - 1));
}

void Job::append_events(Run& run, Effects& effects) {
  std::vector<std::string> fresh = run.writer->take_events();
  if (fresh.empty()) return;
  std::size_t bytes = 0;
  for (std::string& event : fresh) {
    events_.push_back(fmt::format("id: {}\n{}", events_.size() + 1, event));
    bytes += events_.back().size();
  }
  events_bytes_ += bytes;
  for (const auto& reader : readers_) {
    reader->unread += bytes;
    auto exchange = reader->exchange.lock();
    if (!exchange) continue;
    (reader->unread > reader->allowance ? effects.abandon : effects.wake).push_back(std::move(exchange));
  }
}

void Job::complete(HttpAnswer answer, Effects& effects) {
  answer.headers.emplace_back("X-Request-Id", entry_.id);
  state_ = State::kDone;
  since_ = Clock::now();
  run_.reset();
  if (stream_) return;
  whole_ = std::move(answer);
  for (const auto& reader : readers_) {
    if (auto exchange = reader->exchange.lock()) {
      effects.answer.emplace_back(std::move(exchange), with_headers(*whole_, reader->headers));
    }
  }
}

void Job::cut_short(Effects& effects) {
  cut_ = true;
  state_ = State::kWaiting;
  run_.reset();
  for (const auto& reader : readers_) {
    if (auto exchange = reader->exchange.lock()) effects.abandon.push_back(std::move(exchange));
  }
}

void Job::perform(Effects effects) {
  for (const auto& exchange : effects.wake) exchange->wake();
  for (auto& [exchange, answer] : effects.answer) exchange->answer(std::move(answer));
  for (const auto& exchange : effects.abandon) exchange->abandon();
  for (const Scheduler::Id id : effects.cancel) store_.engine().cancel(id);
}

std::optional<ApiError> Job::attach(const std::shared_ptr<HttpExchange>& exchange, std::size_t after,
                                    const HttpHeaders& headers) {
  auto reader = std::make_shared<Reader>();
  reader->exchange = exchange;
  reader->next = after;
  reader->headers = headers;
  bool stream = false;
  std::optional<HttpAnswer> whole;
  while (true) {
    if (auto error = start()) return error;
    const std::lock_guard lock(mutex_);
    if (state_ == State::kWaiting && !cut_) continue;  // another reader just went away
    stream = stream_;
    whole = whole_;
    for (std::size_t i = after; i < events_.size(); ++i) reader->unread += events_[i].size();
    reader->allowance = reader->unread + store_.options().unread_bytes_max;
    readers_.push_back(reader);
    break;
  }
  const auto self = shared_from_this();
  exchange->on_end([self, reader](const HttpEnd& end) { self->reader_ended(reader, end.delivered); });
  if (stream) {
    HttpHeaders all = headers;
    all.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
    all.emplace_back("Cache-Control", "no-cache");
    all.emplace_back("X-Accel-Buffering", "no");
    all.emplace_back("X-Request-Id", entry_.id);
    exchange->stream(200, std::move(all), std::make_shared<Source>(self, reader));
  } else if (whole) {
    exchange->answer(with_headers(*whole, headers));
  }
  return std::nullopt;
}

HttpSource::State Job::read(Reader& reader, std::string& out, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  while (reader.next < events_.size() && out.size() < bytes) {
    const std::string& event = events_[reader.next++];
    out += event;
    reader.unread -= std::min(reader.unread, event.size());
  }
  if (reader.next < events_.size()) return HttpSource::State::kMore;
  if (state_ == State::kDone) return HttpSource::State::kEnd;
  if (state_ != State::kRunning || cut_) return HttpSource::State::kBroken;
  return HttpSource::State::kWait;
}

void Job::reader_ended(const std::shared_ptr<Reader>& reader, bool delivered) {
  Effects effects;
  bool answered = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(readers_, reader);
    answered = delivered && state_ == State::kDone;
    if (!delivered) ++store_.metrics().hang_ups;
    if (!delivered && readers_.empty() && state_ == State::kRunning) {
      // Computed again from the beginning, with the same bytes, should the reader come back.
      state_ = State::kWaiting;
      since_ = Clock::now();
      events_.clear();
      events_bytes_ = 0;
      if (run_) {
        run_->dead = true;
        effects.cancel = run_->ids;
        run_.reset();
      }
    }
  }
  if (answered) store_.journal().remove(entry_.id);
  perform(std::move(effects));
}

std::optional<ApiError> JobStore::create(JournalEntry entry, std::shared_ptr<Job>& job) {
  if (const Status written = journal_.add(entry); !written) {
    log().error("request {}: {}", entry.id, written.error().message);
    return ApiError{.status = 503, .message = "the request cannot be written to the journal", .code = "unavailable"};
  }
  const std::string id = entry.id;
  job = std::make_shared<Job>(*this, std::move(entry));
  if (auto error = job->start()) {
    journal_.remove(id);
    return error;
  }
  const std::lock_guard lock(mutex_);
  jobs_.emplace(id, job);
  return std::nullopt;
}

std::shared_ptr<Job> JobStore::find(const std::string& id, const std::string& user) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found != jobs_.end() && found->second->entry().user == user ? found->second : nullptr;
}

std::size_t JobStore::recover() {
  for (JournalEntry& entry : journal_.read()) {
    if (entry.model != engine_.name()) {
      log().warn("request {} of the journal is for the model {}, this is {}: it is left alone", entry.id, entry.model,
                 engine_.name());
      continue;
    }
    const std::lock_guard lock(mutex_);
    auto job = std::make_shared<Job>(*this, std::move(entry));
    recovered_.push_back(job);
    jobs_.emplace(job->entry().id, std::move(job));
  }
  const std::lock_guard lock(mutex_);
  return recovered_.size();
}

void JobStore::tick() {
  std::vector<std::shared_ptr<Job>> begin, all;
  {
    const std::lock_guard lock(mutex_);
    begin = recovered_;
  }
  for (const auto& job : begin) {
    if (stopping_) return;
    const bool waits = job->state() == Job::State::kWaiting;
    const auto error = waits ? job->start() : std::nullopt;
    if (error && error->status == 429) break;  // later
    if (error) {
      log().warn("request {} of the journal: {}", job->entry().id, error->message);
    } else if (waits) {
      ++metrics_.regenerated;
    }
    const std::lock_guard lock(mutex_);
    std::erase(recovered_, job);
  }
  if (++ticks_ % kTicksPerSweep != 0) return;
  // Answers that were read are kept as long as there is room, the latest longest.
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, job] : jobs_) all.push_back(job);
  }
  std::ranges::sort(all, std::greater{}, [](const auto& job) { return job->entry().created; });
  const auto now = Job::Clock::now();
  std::size_t kept = 0;
  for (const auto& job : all) {
    kept += job->kept_bytes();
    const bool too_much = job->kept_bytes() > 0 && kept > options_.kept_bytes_max;
    if (!too_much && !job->is_over(now, options_.retention)) continue;
    job->forget();
    journal_.remove(job->entry().id);
    const std::lock_guard lock(mutex_);
    jobs_.erase(job->entry().id);
  }
}

}  // namespace butterfly
