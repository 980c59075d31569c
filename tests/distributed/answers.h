// What the tests of promise 1 share: a case, what it answers, and pipelines of this process to run it on.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/sampler.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/stage/test_group_test.h"
#include "completed_step.h"

namespace butterfly {

struct Case {
  int nodes = 1;
  int threads = 1;
  int chunk = 512;
  int neighbours = 0;  // other texts in the same steps
  std::vector<Isa> isas;
  std::optional<DType> kv_type{};

  std::string name() const {
    std::string text =
        fmt::format("{} nodes, {} threads, chunks of {}, {} neighbours,", nodes, threads, chunk, neighbours);
    for (const Isa isa : isas) text += fmt::format(" {}", to_string(isa));
    return text;
  }
};

/// What a run gave for the first text: its greedy tokens, and the logits behind each.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

inline std::vector<TokenId> prompt(int length, int salt, int vocab) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i) tokens.emplace_back((i * 131 + salt * 977 + 7) % vocab);
  return tokens;
}

inline Result<Answer> run_on(Pipeline& pipeline, const Checkpoint& checkpoint, const Case& c, int prompt_tokens,
                             int decode_tokens) {
  Schedule schedule({.rows_max = c.chunk, .depth = pipeline.depth()});
  const int vocab = checkpoint.config.vocab;
  schedule.add(prompt(prompt_tokens, 0, vocab));
  for (int i = 1; i <= c.neighbours; ++i) schedule.add(prompt(prompt_tokens / i + i, i, vocab));
  Answer answer;
  while (!schedule.idle()) {
    BF_ASSIGN_OR_RETURN(Step step, completed_step(pipeline, schedule));
    std::int64_t row = 0;
    for (const SequenceRun& sequence : step.batch.runs) {
      if (sequence.logits_from == sequence.rows) continue;
      const std::span<float> logits = step.tensor.row(row++);
      if (sequence.sequence == SequenceId(0)) answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
      const TokenId token = draw(logits, {}, {});
      if (sequence.sequence == SequenceId(0)) answer.tokens.push_back(token);
      const auto length = static_cast<int>(schedule.tokens(sequence.sequence).size());
      const int limit = sequence.sequence == SequenceId(0) ? prompt_tokens + decode_tokens : prompt_tokens;
      if (length + 1 >= limit) {
        schedule.finish(sequence.sequence);
      } else {
        schedule.append(sequence.sequence, token);
      }
    }
  }
  return answer;
}

inline Result<Answer> run(const Checkpoint& checkpoint, const Case& c, int prompt_tokens, int decode_tokens) {
  const DeploymentConfig config{.nodes = c.nodes,
                                .compute = {.threads = c.threads, .isas = c.isas, .kv_type = c.kv_type}};
  BF_ASSIGN_OR_RETURN(const auto deployment, Deployment::create(checkpoint, config));
  return run_on(deployment->pipeline(), checkpoint, c, prompt_tokens, decode_tokens);
}

/// A tensor group on threads of this process as a pipeline of one stage.
class GroupPipeline final : public Pipeline {
 public:
  GroupPipeline(const Checkpoint& checkpoint, const TestGroup::Options& options) : group_(checkpoint, options) {}
  int depth() const override { return 1; }
  Status submit(Step step) override {
    waiting_.push_back(std::move(step));
    return {};
  }
  Result<Step> next() override {
    const Step step = std::move(waiting_.front());
    waiting_.pop_front();
    return group_.forward(step);
  }
  Status recover(const Error& cause) override { return tl::unexpected(cause); }

 private:
  TestGroup group_;
  std::deque<Step> waiting_;
};

}  // namespace butterfly
