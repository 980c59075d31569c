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
#include "butterfly/infer/scheduler/scheduler.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/serve/protocol/generation_body.h"
#include "butterfly/text/grammar/constraint.h"

namespace butterfly {

struct TextEngineOptions {
  std::string name{};  // that clients call the model by
  Request standard{};  // sampling of requests that do not say
  SchedulerOptions scheduler{};
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
  /// All outlive the engine.
  TextEngine(const Checkpoint& checkpoint, Deployment& deployment, const Tokenizer& tokenizer,
             TextEngineOptions options);

  const std::string& name() const { return options_.name; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Deployment& deployment() const { return deployment_; }
  bool has_chat() const { return options_.chat.has_value(); }
  /// Tokens of prompt and answer together, at most.
  int context() const;

  /// `now` is what templates take for the time.
  std::optional<ApiError> prepare(const GenerationBody& body, std::uint64_t seed, std::int64_t now,
                                  PreparedText& prepared) const;

  Result<Scheduler::Id> submit(Submission submission, RequestObserver observer);
  void cancel(Scheduler::Id id) { scheduler_.cancel(id); }
  SchedulerStats stats() const { return scheduler_.stats(); }

  /// Nodes and epochs as they were when note_cluster() was called last. From any thread.
  ApiJson cluster() const;
  /// By the thread that computes; looks again once a second.
  void note_cluster();

  /// Computes until `stop`.
  Status run(const std::stop_token& stop) { return scheduler_.run(stop); }

 private:
  std::optional<ApiError> prepare_chat(const GenerationBody& body, std::int64_t now, PreparedText& prepared) const;
  std::optional<ApiError> prepare_prompts(const GenerationBody& body, PreparedText& prepared) const;
  std::optional<ApiError> constrain(const GenerationBody& body, Request& request, AnswerOptions& answer) const;
  Request standard_request(const GenerationBody& body, std::uint64_t seed) const;

  const Checkpoint& checkpoint_;
  Deployment& deployment_;
  const Tokenizer& tokenizer_;
  const TextEngineOptions options_;
  Scheduler scheduler_;
  mutable ConstraintCache constraints_;
  mutable std::mutex cluster_mutex_;
  ApiJson cluster_;
  std::chrono::steady_clock::time_point cluster_noted_{};
};

}  // namespace butterfly
