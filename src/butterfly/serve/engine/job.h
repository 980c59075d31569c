// One request for texts, from its acceptance until nobody can ask for it any more: computed once, or again for a reader
// that comes back, with the same bytes. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "butterfly/serve/engine/journal.h"
#include "butterfly/serve/engine/metrics.h"
#include "butterfly/serve/engine/text_engine.h"
#include "butterfly/serve/protocol/answer_writer.h"

namespace butterfly {

class JobStore;

class Job : public std::enable_shared_from_this<Job> {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t {
    kWaiting,    // not computed yet: it was found in the journal, or its reader went away
    kRunning,    //
    kDone,       // answered, for readers that come back
    kForgotten,  // nobody can ask for it
  };

  Job(JobStore& store, JournalEntry entry) : store_(store), entry_(std::move(entry)) {}

  const JournalEntry& entry() const { return entry_; }
  State state() const;

  /// Submits what is to be computed, unless that is under way. Errors: as the client is told.
  std::optional<ApiError> start();

  /// Sends the answer, or the events after number `after`, to a client, as they come. Calls start().
  /// Errors: as the client is told; the exchange is not answered then.
  std::optional<ApiError> attach(const std::shared_ptr<HttpExchange>& exchange, std::size_t after,
                                 const HttpHeaders& headers);

  /// Bytes that are kept only for readers that come back.
  std::size_t kept_bytes() const;
  bool is_over(Clock::time_point now, std::chrono::seconds retention) const;
  void forget();

 private:
  struct Reader {
    std::weak_ptr<HttpExchange> exchange{};
    HttpHeaders headers{};
    std::size_t next = 0;       // event
    std::size_t unread = 0;     // bytes
    std::size_t allowance = 0;  // more unread bytes are too many
  };
  class Source;
  struct Run;
  /// What is to be done without the lock.
  struct Effects {
    std::vector<std::shared_ptr<HttpExchange>> wake{}, abandon{};
    std::vector<std::pair<std::shared_ptr<HttpExchange>, HttpAnswer>> answer{};
    std::vector<Scheduler::Id> cancel{};
  };

  std::optional<ApiError> submit(const std::shared_ptr<Run>& run, PreparedText prepared, int priority);
  RequestObserver observer(const std::shared_ptr<Run>& run, std::size_t choice);
  void take(const std::shared_ptr<Run>& run, std::size_t choice, std::variant<AnswerPiece, Result<Generation>> item);
  void pump(Run& run, Effects& effects);
  std::shared_ptr<Run> make_run(const GenerationBody& body, PreparedText& prepared) const;
  /// Writes the prompt with its log-probabilities; false before they are known.
  bool show_prompt(Run& run, std::size_t choice) const;
  void note_end(Run& run, std::size_t choice, const Generation& generation);
  void append_events(Run& run, Effects& effects);
  void complete(HttpAnswer answer, Effects& effects);
  void cut_short(Effects& effects);
  void perform(Effects effects);
  void reader_ended(const std::shared_ptr<Reader>& reader, bool delivered);
  HttpSource::State read(Reader& reader, std::string& out, std::size_t bytes);

  JobStore& store_;
  const JournalEntry entry_;
  bool stream_ = false;

  mutable std::mutex mutex_;  // guards all below
  State state_ = State::kWaiting;
  bool begun_ = false;  // it was computed, in part at least
  bool cut_ = false;    // the server stops: what is not done never will be
  std::shared_ptr<Run> run_;
  std::vector<std::string> events_;
  std::size_t events_bytes_ = 0;
  std::optional<HttpAnswer> whole_;
  std::vector<std::shared_ptr<Reader>> readers_;
  Clock::time_point since_ = Clock::now();  // of the state
};

struct JobStoreOptions {
  std::chrono::seconds retention{600};                  // of answers, and of requests whose reader went away
  std::size_t kept_bytes_max = std::size_t{64} << 20;   // of answers that were sent
  std::size_t unread_bytes_max = std::size_t{4} << 20;  // of a stream whose client does not read
};

/// All jobs, by id.
class JobStore {
 public:
  JobStore(TextEngine& engine, Journal& journal, Metrics& metrics, const JobStoreOptions& options)
      : engine_(engine), journal_(journal), metrics_(metrics), options_(options) {}

  /// Writes the request down and submits it.
  std::optional<ApiError> create(JournalEntry entry, std::shared_ptr<Job>& job);
  /// Null where there is none that this user may read.
  std::shared_ptr<Job> find(const std::string& id, const std::string& user);
  /// What the journal has from a server before this one. The number of requests.
  std::size_t recover();
  /// To be called every second or so: begins what was recovered, forgets what is over.
  void tick();
  /// From now on what ends early is cut short, and stays in the journal.
  void stop() { stopping_ = true; }
  bool stopping() const { return stopping_; }

  TextEngine& engine() { return engine_; }
  Journal& journal() { return journal_; }
  Metrics& metrics() { return metrics_; }
  const JobStoreOptions& options() const { return options_; }

 private:
  TextEngine& engine_;
  Journal& journal_;
  Metrics& metrics_;
  const JobStoreOptions options_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;
  std::vector<std::shared_ptr<Job>> recovered_;  // not begun yet
  std::uint64_t ticks_ = 0;                      // of the thread that calls tick()
};

}  // namespace butterfly
