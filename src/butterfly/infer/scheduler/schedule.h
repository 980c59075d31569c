// Which rows the next step computes: prompts in chunks, then one token at a time, several sequences side by side, and
// texts for an encoder as a whole and in steps of their own, enough steps under way to keep every stage of the pipeline
// busy. Keeps account of the cache pages of all nodes: sequences that begin alike share pages, what ended may stay for
// others, and where pages are short the youngest sequence gives up its own and begins anew later. Decides order only;
// no order shows in the tokens. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/infer/scheduler/chunk_size.h"
#include "butterfly/infer/scheduler/prefix_index.h"
#include "butterfly/infer/speculation/draft_budget.h"
#include "butterfly/model/inference/page_tables.h"
#include "butterfly/plan/cost/micro_batch.h"
#include "butterfly/stage/stage_step.h"

namespace butterfly {

struct ScheduleOptions {
  int rows_max = 512;                       // rows of one step: the prefill chunk
  int depth = 1;                            // stages of the pipeline
  std::optional<std::int64_t> pages_max{};  // of the cache of each node; none: no limit
  bool keep = false;                        // pages of sequences that ended, for those that begin alike
  double slowdown_max = 0;                  // of texts by prompts beside them; see ChunkSize
};

class Schedule {
 public:
  explicit Schedule(const ScheduleOptions& options);

  /// Adds a text to be continued. `encoded`: a text that is encoded first, and then attended to; empty: none.
  /// `all_logits`: of every token, not of the last one alone.
  SequenceId add(std::vector<TokenId> tokens, std::vector<TokenId> encoded = {}, bool all_logits = false);

  /// Whether a text of this length can begin now without another giving way.
  bool has_room(std::int64_t tokens) const;

  /// The next step to submit, or none while all sequences wait for logits or enough steps are under way.
  /// Errors: kNoMemory.
  Result<std::optional<Step>> next_step();

  /// To be called with every step that came back, in their order, and the time that it alone took.
  void completed(const Step& step, double seconds = 0);

  /// Appends the token that was sampled from a sequence's logits. True: it was guessed, so that the next row of the
  /// same run is the one of this token.
  bool append(SequenceId sequence, TokenId token);

  /// How many guesses for this sequence may be worth `guess_s` seconds each.
  int draft_max(SequenceId sequence, double guess_s);

  /// Tokens that may follow a sequence's last one: computed with it, as many of them as are worth it.
  void propose(SequenceId sequence, std::vector<TokenId> draft);

  /// Ends a sequence; its cache pages are released by the next step unless they are kept.
  void finish(SequenceId sequence);

  /// Everything that was submitted is lost: begins every unfinished sequence anew, over a pipeline of `depth` stages.
  void replay(int depth);

  /// True when every sequence is finished and nothing is under way or left to release.
  bool idle() const;

  std::span<const TokenId> tokens(SequenceId sequence) const { return states_.at(sequence).tokens; }
  /// Of its prompt, that needed not be computed when it began.
  std::int64_t cached_tokens(SequenceId sequence) const { return states_.at(sequence).cached; }

  std::int64_t pages_used() const { return pages_.used(); }
  /// Of these, pages that serve no unfinished sequence.
  std::int64_t pages_kept() const;
  /// Sequences that had to begin anew because pages were short.
  std::uint64_t preempted() const { return preempted_; }
  /// Guessed tokens that were computed, and those of them that came true.
  std::uint64_t drafted() const { return drafted_; }
  std::uint64_t accepted() const { return accepted_; }

 private:
  enum class Stand : std::uint8_t { kRunning, kParked, kKept };
  struct State {
    std::vector<TokenId> tokens{};
    std::vector<TokenId> encoded{};
    std::vector<std::uint64_t> hashes{};  // of the pages of its text as it began, those under which it is found
    Stand stand = Stand::kRunning;
    bool begun = false;  // some rows were submitted, or shared
    bool encoder_submitted = false;
    bool waiting = false;  // for logits of its last token
    bool grown = false;    // by a token that a user reads
    bool all_logits = false;
    std::size_t submitted = 0;        // positions already sent, with those of `drafted`
    std::vector<TokenId> proposed{};  // guesses for the next step
    std::vector<TokenId> drafted{};   // guesses under way, behind `tokens`
    int tried = 0;                    // guesses of the last step
    DraftAcceptance acceptance{};
    std::int64_t cached = 0;
    std::uint64_t order = 0;  // in which sequences were added; of those kept, in which they were last of use
  };
  using Entry = std::map<SequenceId, State>::value_type;

  std::vector<Entry*> active();
  bool add_encoded(std::span<Entry* const> active, int share, std::vector<std::int32_t>& tokens, Batch& batch);
  void add_texts(std::span<Entry* const> active, int share, std::vector<std::int32_t>& tokens, Batch& batch);
  void add_rows(Entry& entry, std::size_t rows, std::vector<std::int32_t>& tokens, Batch& batch);
  void choose_drafts(std::span<Entry* const> texts);
  bool has_free_pages(const Entry& entry, std::size_t tokens) const;
  std::size_t prompt_rows(std::span<Entry* const> active, std::size_t texts);
  void begin(Entry& entry);
  bool make_room(Entry& entry, std::size_t tokens, const Batch& batch);
  Entry* youngest_beside(const Entry& entry, const Batch& batch);
  void park(Entry& entry);
  void unpark();
  void forget_oldest_kept();
  void forget(SequenceId sequence);
  bool fits(std::int64_t tokens) const;
  void index(Entry& entry);

  ScheduleOptions options_;
  std::shared_ptr<Pool> pool_;
  ChunkSize chunk_size_;
  PromptBacklog backlog_;
  DraftBudget draft_budget_;
  PageTables pages_;
  PrefixIndex prefixes_;
  std::map<SequenceId, State> states_;
  std::int32_t next_id_ = -1;
  std::vector<SharedPrefix> shared_;  // for the next step
  std::vector<SequenceId> released_;  // likewise
  std::size_t first_ = 0;             // sequences take turns to be first in a step
  int under_way_ = 0;
  std::uint64_t next_step_id_ = 1;
  std::uint64_t next_order_ = 0;
  std::uint64_t preempted_ = 0;
  std::uint64_t drafted_ = 0;
  std::uint64_t accepted_ = 0;
};

}  // namespace butterfly
