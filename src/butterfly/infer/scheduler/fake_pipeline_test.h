// A model of a scheduler's tests, and requests to it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/infer/request/request.h"
#include "butterfly/infer/scheduler/generate.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

/// A model of its own: the logits of a position name the token that follows from the one before it. Keeps its own
/// account of what nodes would have cached, so that a wrong share or release shows as a wrong token.
class FakePipeline final : public Pipeline {
 public:
  static constexpr int kVocab = 97;

  /// Depends on the whole text so far.
  static std::int32_t follows(std::span<const std::int32_t> text) {
    std::uint64_t hash = 17;
    for (const std::int32_t token : text) hash = hash * 31 + static_cast<std::uint64_t>(token);
    return static_cast<std::int32_t>(3 + hash % (kVocab - 3));
  }

  Status submit(Step step) override {
    if (fail_after_ == 0) return make_error(ErrorCode::kUnavailable, "a node is gone");
    if (fail_after_ > 0) --fail_after_;
    for (const SharedPrefix& shared : step.share) {
      const std::vector<std::int32_t>& from = cached_.at(shared.from);
      if (from.size() < static_cast<std::size_t>(shared.tokens) || cached_.contains(shared.to)) {
        return make_error(ErrorCode::kProtocol, "nothing to share");
      }
      cached_[shared.to].assign(from.begin(), from.begin() + shared.tokens);
    }
    for (const SequenceId sequence : step.release) cached_.erase(sequence);
    const auto tokens = step.tensor.rank() > 0 ? step.tensor.view().values<std::int32_t>() : std::span<std::int32_t>{};
    Tensor logits = *Tensor::allocate(*Pool::shared(), DType::kF32,
                                      {std::max<std::int64_t>(step.batch.logit_rows(), 1), std::int64_t{kVocab}});
    std::size_t at = 0;
    std::int64_t row = 0;
    for (const SequenceRun& run : step.batch.runs) {
      std::vector<std::int32_t>& text = cached_[run.sequence];
      if (text.size() < static_cast<std::size_t>(run.position)) return make_error(ErrorCode::kProtocol, "a gap");
      text.resize(static_cast<std::size_t>(run.position));
      for (int i = 0; i < run.rows; ++i) {
        text.push_back(tokens[at++]);
        if (i >= run.logits_from) one_hot(logits.row(row++), text);
      }
    }
    rows += step.batch.rows();
    ++steps;
    std::this_thread::sleep_for(step_time);
    step.tensor = std::move(logits);
    done_.push_back(std::move(step));
    return {};
  }

  Result<Step> next() override {
    if (done_.empty()) return make_error(ErrorCode::kUnavailable, "a node is gone");
    Step step = std::move(done_.front());
    done_.pop_front();
    return step;
  }

  Status recover(const Error& cause) override {
    done_.clear();
    cached_.clear();
    fail_after_ = -1;
    return recovers ? Status{} : tl::unexpected(cause);
  }
  int depth() const override { return stages; }

  void fail_after(int steps) { fail_after_ = steps; }
  std::size_t cached_sequences() const { return cached_.size(); }

  std::int64_t rows = 0;
  int steps = 0;
  std::chrono::microseconds step_time{0};
  bool recovers = true;
  int stages = 1;

 private:
  static void one_hot(std::span<float> logits, const std::vector<std::int32_t>& text) {
    std::ranges::fill(logits, 0.0f);
    logits[static_cast<std::size_t>(follows(text))] = 1.0f;
  }

  std::map<SequenceId, std::vector<std::int32_t>> cached_;
  std::deque<Step> done_;
  int fail_after_ = -1;
};

inline Tokenizer letters() {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kSentencePiece;
  for (int i = 0; i < FakePipeline::kVocab; ++i) {
    vocabulary.pieces.push_back("t" + std::to_string(i));
    vocabulary.scores.push_back(-i);
    vocabulary.types.push_back(TokenType::kNormal);
  }
  return Tokenizer::create(std::move(vocabulary)).value();
}

inline Request request_of(int seed, int prompt_tokens, int tokens_max) {
  Request request;
  for (int i = 0; i < prompt_tokens; ++i) request.prompt.emplace_back(3 + (seed * 7 + i * 5) % 90);
  request.tokens_max = tokens_max;
  request.ignore_end = true;
  return request;
}

/// What a text is when nobody else is there.
class SchedulerTest : public testing::Test {
 protected:
  std::vector<TokenId> alone(const Request& request) {
    FakePipeline pipeline;
    Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000});
    return generate(scheduler, std::span(&request, 1), {}).value()[0].tokens;
  }

  Tokenizer tokenizer_ = letters();
};

}  // namespace butterfly
