// A conversation: what was said so far, and how the next answer is made. Used by one thread, but for stop_answer().
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/infer/scheduler/generate.h"
#include "chat/chat_model.h"

namespace butterfly::app {

class ChatSession {
 public:
  ChatSession(const ChatModel& model, const Tokenizer& tokenizer, OpenModel& open, const InferenceConfig& config,
              const std::string& system, std::shared_ptr<Drafter> drafter);

  /// Called with each piece of an answer as it comes.
  using EventSink = std::function<void(const AnswerEvent&)>;
  struct Turn {
    FinishReason reason = FinishReason::kLength;
    std::size_t prompt_tokens = 0;
    std::size_t cached_tokens = 0;  // of the prompt, whose keys and values were there already
    std::size_t tokens = 0;
    double seconds = 0;
    double first_token_s = 0;
  };
  /// Answers `text`, or the result of a tool where `role` says so. The history grows by both; on an error by neither.
  Result<Turn> answer(const std::string& text, const std::string& role, const EventSink& sink);

  /// Ends the answer that is being made. False where there is none, or it was stopped already. From any thread.
  bool stop_answer();
  bool is_answering();

  void set_system(const std::string& text);
  void reset();
  /// Errors: kIo, kBadData naming the file.
  Status save(const std::string& path) const;
  Status load(const std::string& path);
  std::size_t size() const { return messages_.size(); }

 private:
  const ChatModel& model_;
  const Tokenizer& tokenizer_;
  const InferenceConfig& config_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::string system_;
  Scheduler scheduler_;
  std::mutex mutex_;  // guards stop_ and answering_
  std::stop_source stop_;
  bool answering_ = false;
};

}  // namespace butterfly::app
