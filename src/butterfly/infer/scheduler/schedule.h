// Which rows the next step computes: prompts in chunks, then one token at a time, several sequences side by side, and
// texts for an encoder as a whole and in steps of their own,
// enough steps under way to keep every stage of the pipeline busy. Decides order only; no order shows in the tokens.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/stage/stage_step.h"

namespace butterfly {

struct ScheduleOptions {
  int rows_max = 512;  // rows of one step: the prefill chunk
  int depth = 1;       // stages of the pipeline
  bool keep = false;   // what the pipeline has cached of sequences that end, for a schedule after this one
};

class Schedule {
 public:
  explicit Schedule(const ScheduleOptions& options) : options_(options), pool_(Pool::create()) {}

  /// Adds a text to be continued; its id is the number of sequences before it. The pipeline still has the keys and
  /// values of the first `cached` tokens under this id. `encoded`: a text that is encoded first, and then attended to;
  /// empty: none.
  SequenceId add(std::vector<TokenId> tokens, std::size_t cached = 0, std::vector<TokenId> encoded = {});

  /// The next step to submit, or none while all sequences wait for logits or enough steps are under way.
  /// Errors: kNoMemory.
  Result<std::optional<Step>> next_step();

  /// To be called with every step that came back.
  void completed(const Step& step);

  /// Appends the token that was sampled from a sequence's logits.
  void append(SequenceId sequence, TokenId token);

  /// Ends a sequence; its cache pages are released by the next step unless they are kept.
  void finish(SequenceId sequence);

  /// Everything that was submitted is lost: begins every unfinished sequence anew, over a pipeline of `depth` stages.
  void replay(int depth);

  /// True when every sequence is finished and nothing is under way or left to release.
  bool idle() const;

  std::span<const TokenId> tokens(SequenceId sequence) const { return state(sequence).tokens; }
  /// Tokens that were sent: what the pipeline has cached once all steps came back.
  std::size_t submitted(SequenceId sequence) const { return state(sequence).submitted; }

 private:
  struct State {
    std::vector<TokenId> tokens;
    std::vector<TokenId> encoded;
    bool encoder_submitted = false;
    std::size_t submitted = 0;  // positions already sent
    bool waiting = false;       // for logits
    bool finished = false;
  };
  const State& state(SequenceId id) const { return states_[static_cast<std::size_t>(id.value)]; }
  State& state(SequenceId id) { return states_[static_cast<std::size_t>(id.value)]; }
  bool add_encoded(int share, std::vector<std::int32_t>& tokens, Batch& batch);
  void add_rows(State& state, SequenceId id, std::vector<std::int32_t>& tokens, Batch& batch);

  ScheduleOptions options_;
  std::shared_ptr<Pool> pool_;
  std::vector<State> states_;
  std::vector<SequenceId> released_;
  std::size_t first_ = 0;  // sequences take turns to be first in a step
  int under_way_ = 0;
  std::uint64_t next_id_ = 1;
};

}  // namespace butterfly
