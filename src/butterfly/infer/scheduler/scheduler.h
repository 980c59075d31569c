// The one scheduler of requests, for the command line, the library and the server: requests come from any thread, one
// thread computes them side by side over a pipeline, and each is told of its tokens as they come. Whatever shares a
// step with a request, waits before it or dies under it, its tokens are the same.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/infer/request/request.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/infer/scheduler/waiting_line.h"
#include "butterfly/infer/speculation/drafter.h"

namespace butterfly {

struct SchedulerOptions {
  int context = 0;                // of the model: no text becomes longer
  int vocab = 0;                  // of the model: a tokenizer may have more tokens; 0: not known
  int rows_max = 512;             // of one step: the greatest part of a prompt that is computed at once
  int sequences_max = 64;         // that are computed side by side
  std::int64_t cache_tokens = 0;  // positions for which all nodes have room in their caches; 0: no limit
  std::size_t waiting_max = 0;    // requests that wait for their turn; more are refused. 0: no limit
  bool keep_prefixes = false;     // what ended stays cached while there is room, for requests that begin alike
  /// Parts of prompts beside texts that are being written are cut so that a step takes at most this many times what it
  /// takes without them; 0: they are not cut.
  double slowdown_max = 0;
  std::shared_ptr<Drafter> drafter{};  // guesses tokens ahead where that makes texts come sooner; null: nobody does
};

/// A request, and on whose behalf.
struct Submission {
  Request request{};
  int priority = 0;                                                 // higher ones go first; see WaitingLine
  std::string user{};                                               // users take turns
  std::optional<std::chrono::steady_clock::time_point> deadline{};  // ends it as kCancelled with what it has
};

/// One token of a text.
struct TokenEvent {
  const SampledToken& sampled;
  std::string_view text{};  // what is complete with it: pieces join to Generation::text; valid during the call
};

/// How one request goes on. Called by the thread that computes, which waits meanwhile: short, and without calls to the
/// scheduler but cancel().
struct RequestObserver {
  std::function<void(const TokenEvent& event)> token{};  // not for the token that ends a text
  std::function<void(std::string_view text)> rest{};     // what was held back, at the end
  /// Once, last. Errors: kBadData where its logits are no numbers; those of the pipeline, where nothing goes on.
  std::function<void(Result<Generation> generation)> done{};
};

/// Counts since the beginning, and states now.
struct SchedulerStats {
  std::uint64_t submitted = 0, finished = 0, refused = 0, cancelled = 0, failed = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint64_t drafted_tokens = 0, accepted_tokens = 0;  // that were guessed and computed; those that came true
  std::uint64_t steps = 0, rows = 0, preempted = 0, recovered = 0;
  std::size_t waiting = 0, running = 0;
  std::int64_t cache_pages = 0;       // that are in use, by requests and by what is kept
  std::int64_t cache_pages_kept = 0;  // of these, those that serve no request and are given up when room is needed
  std::int64_t cache_pages_max = 0;   // 0: no limit
  double busy_s = 0;                  // that a step was under way
};

class Scheduler {
 public:
  using Id = std::uint64_t;
  struct Text;  // one request, from submit() to done()
  struct Delete {
    void operator()(Text* text) const;
  };
  using TextPtr = std::unique_ptr<Text, Delete>;

  /// Both outlive the scheduler.
  Scheduler(Pipeline& pipeline, const Tokenizer& tokenizer, const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// From any thread. Errors: kInvalidArgument (an option out of range, a prompt longer than the context), kNoMemory
  /// (longer than the caches of all nodes can hold), kUnavailable (too many wait). After an error nothing is called.
  Result<Id> submit(Submission submission, RequestObserver observer);

  /// Ends a request as kCancelled with what it has, soon. From any thread; what has ended is ignored.
  void cancel(Id id);

  /// Computes until every request has ended; `stop` cancels them. By one thread. Errors: those that the pipeline does
  /// not recover from; all requests then have ended with it.
  Status run_until_idle(const std::stop_token& stop = {});

  /// The same, but waits for further requests until `stop`, which ends those that are left as kCancelled.
  Status run(const std::stop_token& stop);

  /// Waits until a request is there; false: until `stop`.
  bool wait_for_requests(const std::stop_token& stop);

  SchedulerStats stats() const;  // from any thread

  /// All texts that have not ended, as far as they are: for a scheduler over another replica of the model. By the
  /// thread that computes, also while Pipeline::recover() has it.
  std::vector<TextPtr> give_up();

  /// Goes on with a text of another scheduler. From any thread. Its id here; never refused.
  Id take_over(TextPtr text);

  /// The id that a text has where it is now.
  static Id id_of(const Text& text);

 private:
  using Clock = std::chrono::steady_clock;

  Status loop(const std::stop_token& stop, bool forever);
  void take_changes(bool stopping);
  void begin_waiting();
  Status advance();
  void take_logits(const SequenceRun& run, Step& step, std::int64_t& row);
  Status read_prompt(Text& text, std::size_t position, std::span<float> logits);
  Status draw(Text& text, std::size_t position, std::span<float> logits);
  void accept(Text& text, const SampledToken& sampled);
  void propose(Text& text);
  void end(Text& text, FinishReason reason);
  void finish(Text& text, Result<Generation> generation);
  void end_all(const Error& error);
  Id add(TextPtr text);
  bool has_waiting() const;
  void publish();

  Pipeline& pipeline_;
  const Tokenizer& tokenizer_;
  const SchedulerOptions options_;

  // Of the thread that computes.
  Schedule schedule_;
  std::map<SequenceId, TextPtr> running_;
  std::deque<std::uint64_t> submitted_ns_;  // of the steps under way
  std::uint64_t completed_ns_ = 0;          // when the last one came back

  mutable std::mutex mutex_;  // what follows is seen by all threads
  std::condition_variable_any changed_;
  WaitingLine line_;
  std::map<Id, TextPtr> waiting_;
  std::set<Id> cancelled_;  // of those that are computed
  Id next_id_ = 1;
  SchedulerStats stats_;
};

}  // namespace butterfly
