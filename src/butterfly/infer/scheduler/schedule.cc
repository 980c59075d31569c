#include "butterfly/infer/request/batch_schedule.h"

#include <algorithm>

namespace butterfly {

SequenceId Schedule::add(std::vector<TokenId> tokens, std::size_t cached, std::vector<TokenId> encoded) {
  // The last one is computed anyway: its logits are wanted.
  const std::size_t sent = tokens.empty() ? 0 : std::min(cached, tokens.size() - 1);
  states_.push_back({.tokens = std::move(tokens), .encoded = std::move(encoded), .submitted = sent});
  return SequenceId(static_cast<std::int32_t>(states_.size() - 1));
}

/// Texts that are to be encoded, as many as fit and one at least; false where there are none.
bool Schedule::add_encoded(int share, std::vector<std::int32_t>& tokens, Batch& batch) {
  for (std::size_t i = 0; i < states_.size() && static_cast<int>(batch.runs.size()) < share; ++i) {
    State& state = states_[i];
    if (state.finished || state.encoded.empty() || state.encoder_submitted) continue;
    if (!tokens.empty() && tokens.size() + state.encoded.size() > static_cast<std::size_t>(options_.rows_max)) break;
    const auto rows = static_cast<std::int32_t>(state.encoded.size());
    batch.runs.push_back({.sequence = SequenceId(static_cast<std::int32_t>(i)), .rows = rows, .logits_from = rows});
    for (const TokenId token : state.encoded) tokens.push_back(token.value);
    state.encoder_submitted = true;
  }
  if (!batch.runs.empty()) batch.kind = BatchKind::kEncode;
  return !batch.runs.empty();
}

void Schedule::add_rows(State& state, SequenceId id, std::vector<std::int32_t>& tokens, Batch& batch) {
  const std::size_t room = static_cast<std::size_t>(options_.rows_max) - tokens.size();
  const std::size_t rows = std::min(state.tokens.size() - state.submitted, room);
  if (rows == 0) return;
  const bool last = state.submitted + rows == state.tokens.size();
  SequenceRun run;
  run.sequence = id;
  run.position = static_cast<std::int32_t>(state.submitted);
  run.rows = static_cast<std::int32_t>(rows);
  run.logits_from = static_cast<std::int32_t>(last ? rows - 1 : rows);
  run.encoder_rows = static_cast<std::int32_t>(state.encoded.size());
  batch.runs.push_back(run);
  for (std::size_t i = 0; i < rows; ++i) tokens.push_back(state.tokens[state.submitted + i].value);
  state.submitted += rows;
  state.waiting = last;
}

Result<std::optional<Step>> Schedule::next_step() {
  // One more step than stages keeps a step waiting in front of the first while each stage has one.
  if (under_way_ > options_.depth) return std::nullopt;
  const auto active =
      static_cast<int>(std::count_if(states_.begin(), states_.end(), [](const State& s) { return !s.finished; }));
  const int share = std::max(1, (active + options_.depth - 1) / options_.depth);
  Step step;
  std::vector<std::int32_t> tokens;
  const bool encodes = add_encoded(share, tokens, step.batch);
  for (std::size_t n = 0; !encodes && n < states_.size() && static_cast<int>(step.batch.runs.size()) < share; ++n) {
    const std::size_t i = (first_ + n) % states_.size();
    State& candidate = states_[i];
    if (candidate.finished || candidate.waiting) continue;
    add_rows(candidate, SequenceId(static_cast<std::int32_t>(i)), tokens, step.batch);
  }
  if (!states_.empty() && !encodes) first_ = (first_ + step.batch.runs.size()) % states_.size();
  if (step.batch.runs.empty() && (released_.empty() || active > 0)) return std::nullopt;
  step.release = std::exchange(released_, {});
  step.id = next_id_++;
  ++under_way_;
  if (!tokens.empty()) {
    BF_ASSIGN_OR_RETURN(step.tensor, Tensor::allocate(*pool_, DType::kI32, {static_cast<std::int64_t>(tokens.size())}));
    std::copy(tokens.begin(), tokens.end(), step.tensor.mutable_view().values<std::int32_t>().begin());
  }
  return step;
}

void Schedule::completed(const Step& step) {
  --under_way_;
  for (const SequenceRun& run : step.batch.runs) {
    if (run.logit_rows() > 0) state(run.sequence).waiting = false;
  }
}

void Schedule::append(SequenceId sequence, TokenId token) {
  state(sequence).tokens.push_back(token);
}

void Schedule::finish(SequenceId sequence) {
  State& ended = state(sequence);
  if (ended.finished) return;
  ended.finished = true;
  if (!options_.keep) released_.push_back(sequence);
}

void Schedule::replay(int depth) {
  options_.depth = depth;
  under_way_ = 0;
  released_.clear();
  for (State& state : states_) {
    state.submitted = 0;
    state.encoder_submitted = false;
    state.waiting = false;
  }
}

bool Schedule::idle() const {
  return under_way_ == 0 && released_.empty() &&
         std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.finished; });
}

}  // namespace butterfly
