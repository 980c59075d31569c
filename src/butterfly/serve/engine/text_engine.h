// The model that serves: bodies of requests become prompts, prompts go to the scheduler. Thread-safe but for run(),
// which belongs to the thread that made it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/infer/chat/chat_model.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/scheduler/replicated_scheduler.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/serve/protocol/generation_body.h"
#include "butterfly/text/grammar/constraint.h"

namespace butterfly {

struct TextEngineOptions {
  std::string name{};                                // that clients call the model by
  Request standard{};                                // sampling of requests that do not say
  SchedulerOptions scheduler{};                      // of each replica
  std::vector<std::shared_ptr<Drafter>> drafters{};  // of the replicas, one each; none: nobody guesses
  std::optional<ChatModel> chat{};
  std::string no_chat{};  // why there is none
};

/// A body ready to be computed.
struct PreparedText {
  std::vector<Request> prompts{};    // each is computed `samples` times
  std::vector<std::string> texts{};  // of the prompts, where the answer repeats them
  AnswerOptions answer{};
};

class TextEngine {
 public:
  /// `deployments` are replicas of the model, one at least. All outlive the engine.
  TextEngine(const Checkpoint& checkpoint, std::vector<Deployment*> deployments, const Tokenizer& tokenizer,
             TextEngineOptions options);

  const std::string& name() const { return options_.name; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_chat() const { return options_.chat.has_value(); }
  /// Tokens of prompt and answer together, at most.
  int context() const;

  /// `now` is what templates take for the time.
  std::optional<ApiError> prepare(const GenerationBody& body, std::uint64_t seed, std::int64_t now,
                                  PreparedText& prepared) const;

  Result<ReplicatedScheduler::Id> submit(Submission submission, RequestObserver observer);
  void cancel(ReplicatedScheduler::Id id) { scheduler_.cancel(id); }
  SchedulerStats stats() const { return scheduler_.stats(); }

  /// Nodes and epochs as they were when a text ended last, or up to a second before. From any thread.
  ApiJson cluster() const;

  /// A replica has too few nodes, or enough again; false where none can compute now. By the thread that computes it.
  bool set_up(std::size_t replica, bool up);

  /// Computes until `stop`.
  Status run(const std::stop_token& stop) { return scheduler_.run(stop); }

 private:
  std::optional<ApiError> prepare_chat(const GenerationBody& body, std::int64_t now, PreparedText& prepared) const;
  std::optional<ApiError> prepare_prompts(const GenerationBody& body, PreparedText& prepared) const;
  std::optional<ApiError> constrain(const GenerationBody& body, Request& request, AnswerOptions& answer) const;
  Request standard_request(const GenerationBody& body, std::uint64_t seed) const;

  /// By the thread that computes the replica; looks again once a second.
  void note_cluster(std::size_t replica);

  const Checkpoint& checkpoint_;
  const std::vector<Deployment*> deployments_;
  const Tokenizer& tokenizer_;
  const TextEngineOptions options_;
  mutable ConstraintCache constraints_;
  /// What is told of a replica.
  struct Noted {
    ApiJson nodes = ApiJson::array(), epochs = ApiJson::array();
    std::string split{};
    std::chrono::steady_clock::time_point since{};
  };
  mutable std::mutex cluster_mutex_;
  std::vector<Noted> noted_;
  ReplicatedScheduler scheduler_;  // last: its threads work with the others
};

}  // namespace butterfly
