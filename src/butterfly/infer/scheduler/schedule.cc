#include "butterfly/infer/scheduler/schedule.h"

#include <algorithm>
#include <limits>

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

constexpr std::size_t kKeptMax = 64;    // sequences, where no limit of pages bounds them
constexpr int kDraftMax = 15;           // guessed tokens of a text in one step
constexpr std::size_t kLogitRows = 64;  // of a text that wants all: a row of logits may have a megabyte

/// Whether only its last token is still to be computed, after others that were.
template <typename State>
bool writes(const State& state) {
  return state.submitted > 0 && state.tokens.size() <= state.submitted + 1;
}

/// A run of a text's newest token, perhaps with guesses behind it, not of a prompt.
bool continues_text(const SequenceRun& run) {
  return run.position > 0 && run.logits_from == 0 && run.rows <= kDraftMax + 1;
}

bool contains(const Batch& batch, SequenceId sequence) {
  return std::ranges::any_of(batch.runs, [&](const SequenceRun& run) { return run.sequence == sequence; });
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options)
    : options_(options),
      pool_(Pool::create()),
      chunk_size_(options.slowdown_max, options.rows_max),
      pages_(options.pages_max) {}

SequenceId Schedule::add(std::vector<TokenId> tokens, std::vector<TokenId> encoded, bool all_logits) {
  do {
    next_id_ = next_id_ < std::numeric_limits<std::int32_t>::max() - 1 ? next_id_ + 1 : 0;
  } while (states_.contains(SequenceId(next_id_)));
  const auto [entry, added] = states_.emplace(SequenceId(next_id_), State{});
  entry->second.tokens = std::move(tokens);
  entry->second.encoded = std::move(encoded);
  entry->second.all_logits = all_logits;
  entry->second.order = next_order_++;
  index(*entry);
  return entry->first;
}

/// Makes the pages of its text known, as far as they are full.
void Schedule::index(Entry& entry) {
  auto& [id, state] = entry;
  prefixes_.remove(id, state.hashes);
  state.hashes.clear();
  if (!state.encoded.empty()) return;  // what its keys are depends on more than its own text
  state.hashes = prefix_hashes(state.tokens);
  prefixes_.add(id, state.hashes);
}

std::vector<Schedule::Entry*> Schedule::active() {
  std::vector<Entry*> result;
  for (Entry& entry : states_) {
    if (entry.second.stand == Stand::kRunning) result.push_back(&entry);
  }
  std::ranges::sort(result, {}, [](const Entry* entry) { return entry->second.order; });
  return result;
}

/// Looks for the longest beginning that another sequence has on the nodes, or will have soon: then it waits for it.
void Schedule::begin(Entry& entry) {
  auto& [id, state] = entry;
  const auto page = static_cast<std::size_t>(kKvPageTokens);
  // The last token is computed anyway: its logits are wanted.
  std::size_t pages = std::min(state.hashes.size(), (state.tokens.size() - 1) / page);
  for (; pages > 0 && !state.all_logits; --pages) {
    const std::size_t tokens = pages * page;
    bool comes = false;
    for (const SequenceId holder : prefixes_.holders(state.hashes[pages - 1])) {
      State& other = states_.at(holder);
      if (holder == id || other.tokens.size() < tokens) continue;
      if (!std::equal(state.tokens.begin(), state.tokens.begin() + static_cast<std::ptrdiff_t>(tokens),
                      other.tokens.begin()))
        continue;
      if (other.submitted >= tokens) {
        // Cannot fail: the other has the pages, and this one has none yet.
        if (!pages_.share(holder, id, static_cast<std::int64_t>(tokens))) continue;
        shared_.push_back({.from = holder, .to = id, .tokens = static_cast<std::int32_t>(tokens)});
        if (other.stand == Stand::kKept) other.order = next_order_++;
        state.submitted = tokens;
        state.cached = std::max(state.cached, static_cast<std::int64_t>(tokens));
        state.begun = true;
        return;
      }
      comes = comes || (other.stand == Stand::kRunning && other.order < state.order);
    }
    if (comes) return;
  }
  state.begun = true;
}

/// Texts that are to be encoded, as many as fit and one at least; false where there are none.
bool Schedule::add_encoded(std::span<Entry* const> active, int share, std::vector<std::int32_t>& tokens, Batch& batch) {
  for (Entry* entry : active) {
    auto& [id, state] = *entry;
    if (static_cast<int>(batch.runs.size()) >= share) break;
    if (state.encoded.empty() || state.encoder_submitted) continue;
    if (!tokens.empty() && tokens.size() + state.encoded.size() > static_cast<std::size_t>(options_.rows_max)) break;
    if (!make_room(*entry, state.encoded.size(), batch)) continue;
    const auto rows = static_cast<std::int32_t>(state.encoded.size());
    batch.runs.push_back({.sequence = id, .rows = rows, .logits_from = rows});
    for (const TokenId token : state.encoded) tokens.push_back(token.value);
    state.encoder_submitted = true;
  }
  if (!batch.runs.empty()) batch.kind = BatchKind::kEncode;
  return !batch.runs.empty();
}

void Schedule::add_rows(Entry& entry, std::size_t rows, std::vector<std::int32_t>& tokens, Batch& batch) {
  auto& [id, state] = entry;
  if (state.all_logits) rows = std::min(rows, kLogitRows);
  rows = std::min(rows, state.tokens.size() - state.submitted);
  if (rows == 0 || !make_room(entry, state.submitted + rows, batch)) return;
  const bool last = state.submitted + rows == state.tokens.size();
  std::vector<TokenId> draft = std::exchange(state.proposed, {});
  if (!last || !has_free_pages(entry, state.tokens.size() + draft.size())) draft.clear();
  // Cannot fail: the pages are there.
  if (!draft.empty()) static_cast<void>(make_room(entry, state.tokens.size() + draft.size(), batch));
  SequenceRun run;
  run.sequence = id;
  run.position = static_cast<std::int32_t>(state.submitted);
  run.rows = static_cast<std::int32_t>(rows + draft.size());
  run.logits_from = static_cast<std::int32_t>(state.all_logits ? 0 : last ? rows - 1 : rows);
  run.encoder_rows = static_cast<std::int32_t>(state.encoded.size());
  batch.runs.push_back(run);
  for (std::size_t i = 0; i < rows; ++i) tokens.push_back(state.tokens[state.submitted + i].value);
  for (const TokenId guess : draft) tokens.push_back(guess.value);
  state.submitted += rows + draft.size();
  state.waiting = last;
  drafted_ += draft.size();
  if (last) state.tried = static_cast<int>(draft.size());
  state.drafted = std::move(draft);
}

/// Of all prompts together, beside `texts` in this step.
std::size_t Schedule::prompt_rows(std::span<Entry* const> active, std::size_t texts) {
  std::int64_t pending = 0;
  for (const Entry* entry : active) {
    const State& state = entry->second;
    if (state.submitted < state.tokens.size() && !writes(state))
      pending += static_cast<std::int64_t>(state.tokens.size() - state.submitted);
  }
  const auto rows_max = static_cast<std::size_t>(options_.rows_max);
  const auto rows = static_cast<std::size_t>(backlog_.rows(pending, options_.depth, options_.rows_max));
  // Whole tiles of matmuls, with the rows of the texts, where these leave room for it.
  const std::size_t room = texts < rows ? rows - texts : std::min(rows, rows_max - std::min(texts, rows_max));
  const auto writing = static_cast<std::size_t>(
      std::ranges::count_if(active, [](const Entry* e) { return e->second.grown && writes(e->second); }));
  if (options_.slowdown_max <= 0 || writing == 0) return room;
  // A step of prompts alone would only stand in the way of texts that are under way, unless a stage is idle.
  if (texts == 0 && under_way_ >= options_.depth) return 0;
  if (texts > 0) return std::min(room, static_cast<std::size_t>(chunk_size_.rows(static_cast<int>(texts))));
  // Their turn comes in another step, for which this one must not be long; but it must not be empty.
  const int beside = std::max(1, static_cast<int>(writing) / options_.depth);
  return std::min(room, static_cast<std::size_t>(chunk_size_.rows_before(beside)));
}

/// Cuts what was proposed for these texts to what is worth computing in a step of all of them.
void Schedule::choose_drafts(std::span<Entry* const> texts) {
  struct Guess {
    double chance;
    State* state;
  };
  std::vector<Guess> guesses;
  for (Entry* entry : texts) {
    double chance = 1;
    for (std::size_t i = 0; i < entry->second.proposed.size(); ++i) {
      chance *= entry->second.acceptance.rate();
      guesses.push_back({chance, &entry->second});
    }
  }
  // Chances of one text fall, so the best of all are beginnings of what was proposed.
  std::ranges::stable_sort(guesses, std::greater{}, &Guess::chance);
  std::vector<double> chances;
  for (const Guess& guess : guesses) chances.push_back(guess.chance);
  const auto worth = static_cast<std::size_t>(draft_budget_.rows(static_cast<int>(texts.size()), chances));
  std::map<State*, std::size_t> kept;
  for (std::size_t i = 0; i < worth; ++i) ++kept[guesses[i].state];
  for (Entry* entry : texts) {
    State& state = entry->second;
    if (!state.proposed.empty() && !kept.contains(&state)) state.acceptance.skip();
    state.proposed.resize(kept[&state]);
  }
}

/// Whether nobody has to give way for them.
bool Schedule::has_free_pages(const Entry& entry, std::size_t tokens) const {
  if (!options_.pages_max) return true;
  const std::int64_t held = pages_.has(entry.first) ? std::ssize(pages_.pages(entry.first)) : 0;
  return PageTables::pages_for(static_cast<std::int64_t>(tokens)) - held <= *options_.pages_max - pages_.used();
}

/// Of up to `share` sequences that wait for nothing: the tokens of texts, then as much of prompts as is bearable.
void Schedule::add_texts(std::span<Entry* const> active, int share, std::vector<std::int32_t>& tokens, Batch& batch) {
  std::vector<Entry*> texts;
  std::vector<Entry*> prompts;
  for (std::size_t n = 0; n < active.size() && static_cast<int>(texts.size() + prompts.size()) < share; ++n) {
    Entry* entry = active[(first_ + n) % active.size()];
    const State& state = entry->second;
    const bool unread = !state.encoded.empty() && !state.encoder_submitted;
    if (state.waiting || !state.begun || unread) continue;
    (writes(entry->second) ? texts : prompts).push_back(entry);
  }
  choose_drafts(texts);
  for (Entry* entry : texts) {
    // One that came before it in this step may have taken its pages.
    if (entry->second.stand == Stand::kRunning && tokens.size() < static_cast<std::size_t>(options_.rows_max)) {
      add_rows(*entry, 1, tokens, batch);
    }
  }
  // Prompts share what is left alike; what a short one does not need goes to the others.
  std::ranges::stable_sort(prompts, {}, [](const Entry* e) { return e->second.tokens.size() - e->second.submitted; });
  std::size_t room = prompt_rows(active, tokens.size());
  for (std::size_t i = 0; i < prompts.size() && room > 0; ++i) {
    const std::size_t before = tokens.size();
    const std::size_t left = prompts.size() - i;
    if (prompts[i]->second.stand == Stand::kRunning) add_rows(*prompts[i], (room + left - 1) / left, tokens, batch);
    room -= tokens.size() - before;
  }
  if (!active.empty()) first_ = (first_ + batch.runs.size()) % active.size();
}

Result<std::optional<Step>> Schedule::next_step() {
  // One more step than stages keeps a step waiting in front of the first while each stage has one.
  if (under_way_ > options_.depth) return std::nullopt;
  unpark();
  Step step;
  std::vector<std::int32_t> tokens;
  std::vector<Entry*> running;
  std::uint64_t parked = 0;
  do {  // again where those whose turn it was gave way to others
    parked = preempted_;
    running = active();
    const int share = std::max(1, (static_cast<int>(running.size()) + options_.depth - 1) / options_.depth);
    for (Entry* entry : running) {
      if (!entry->second.begun) begin(*entry);
    }
    if (!add_encoded(running, share, tokens, step.batch)) add_texts(running, share, tokens, step.batch);
  } while (step.batch.runs.empty() && preempted_ > parked);
  if (step.batch.runs.empty() && (released_.empty() || !running.empty())) return std::nullopt;
  step.share = std::exchange(shared_, {});
  step.release = std::exchange(released_, {});
  step.id = next_step_id_++;
  ++under_way_;
  if (!tokens.empty()) {
    BF_ASSIGN_OR_RETURN(step.tensor, Tensor::allocate(*pool_, DType::kI32, {static_cast<std::int64_t>(tokens.size())}));
    std::copy(tokens.begin(), tokens.end(), step.tensor.mutable_view().values<std::int32_t>().begin());
  }
  return step;
}

void Schedule::completed(const Step& step, double seconds) {
  --under_way_;
  int texts = 0;
  int text_rows = 0;  // of these, with what was guessed of them
  int prompt_rows = 0;
  for (const SequenceRun& run : step.batch.runs) {
    if (continues_text(run)) {
      ++texts;
      text_rows += run.rows;
    } else {
      prompt_rows += run.rows;
    }
    if (run.logit_rows() == 0) continue;
    const auto found = states_.find(run.sequence);
    if (found == states_.end()) continue;
    State& state = found->second;
    if (static_cast<std::size_t>(run.position + run.rows) >= state.tokens.size()) state.waiting = false;
  }
  if (seconds <= 0 || step.batch.kind != BatchKind::kContinue) return;
  chunk_size_.observe(text_rows, prompt_rows, seconds);
  if (prompt_rows == 0) draft_budget_.observe(texts, text_rows, seconds);
}

bool Schedule::append(SequenceId sequence, TokenId token) {
  State& state = states_.at(sequence);
  state.tokens.push_back(token);
  state.grown = true;
  const bool guessed = !state.drafted.empty() && state.drafted.front() == token;
  if (guessed) {
    state.drafted.erase(state.drafted.begin());
    ++accepted_;
  }
  if (state.tried > 0 && (!guessed || state.drafted.empty())) {
    const int right = state.tried - static_cast<int>(state.drafted.size());
    state.acceptance.observe(std::exchange(state.tried, 0), right);
  }
  if (guessed) return true;
  state.drafted.clear();
  // What was computed from here on belongs to another text, and is written anew.
  state.submitted = std::min(state.submitted, state.tokens.size() - 1);
  return false;
}

int Schedule::draft_max(SequenceId sequence, double guess_s) {
  if (guess_s <= 0) return kDraftMax;
  State& state = states_.at(sequence);
  std::vector<double> chances;
  double chance = 1;
  for (int i = 0; i < kDraftMax; ++i) chances.push_back(chance *= state.acceptance.rate());
  const int running = static_cast<int>(std::ranges::count_if(
      states_, [](const Entry& entry) { return entry.second.stand == Stand::kRunning && writes(entry.second); }));
  const int rows = draft_budget_.rows(std::max(1, running / options_.depth), chances, guess_s);
  if (rows == 0) state.acceptance.skip();
  return rows;
}

void Schedule::propose(SequenceId sequence, std::vector<TokenId> draft) {
  if (draft.size() > kDraftMax) draft.resize(kDraftMax);
  states_.at(sequence).proposed = std::move(draft);
}

void Schedule::finish(SequenceId sequence) {
  const auto found = states_.find(sequence);
  if (found == states_.end() || found->second.stand == Stand::kKept) return;
  State& state = found->second;
  const bool useful = state.encoded.empty() &&
                      std::min(state.submitted, state.tokens.size()) >= static_cast<std::size_t>(kKvPageTokens);
  if (!options_.keep || !useful) return forget(sequence);
  state.tokens.resize(std::min(state.submitted, state.tokens.size()));
  state.stand = Stand::kKept;
  state.order = next_order_++;
  index(*found);
  // Of two that are alike to the last full page, one is enough.
  std::vector<SequenceId> alike;
  for (const SequenceId holder : prefixes_.holders(state.hashes.back())) {
    const State& other = states_.at(holder);
    if (holder != sequence && other.stand == Stand::kKept && other.hashes == state.hashes) alike.push_back(holder);
  }
  for (const SequenceId other : alike) forget(other);
  const auto kept = static_cast<std::size_t>(
      std::ranges::count_if(states_, [](const Entry& entry) { return entry.second.stand == Stand::kKept; }));
  if (!options_.pages_max && kept > kKeptMax) forget_oldest_kept();
}

void Schedule::forget(SequenceId sequence) {
  const auto found = states_.find(sequence);
  prefixes_.remove(sequence, found->second.hashes);
  pages_.release(sequence);
  released_.push_back(sequence);
  states_.erase(found);
}

void Schedule::forget_oldest_kept() {
  const State* oldest = nullptr;
  SequenceId id{};
  for (const auto& [sequence, state] : states_) {
    if (state.stand != Stand::kKept || (oldest != nullptr && oldest->order < state.order)) continue;
    oldest = &state;
    id = sequence;
  }
  if (oldest != nullptr) forget(id);
}

std::int64_t Schedule::pages_kept() const {
  std::vector<bool> serves(static_cast<std::size_t>(pages_.created()));
  std::int64_t serving = 0;
  for (const auto& [sequence, state] : states_) {
    if (state.stand != Stand::kRunning || !pages_.has(sequence)) continue;
    for (const std::int32_t page : pages_.pages(sequence)) {
      if (!serves[static_cast<std::size_t>(page)]) ++serving;
      serves[static_cast<std::size_t>(page)] = true;
    }
  }
  return pages_.used() - serving;
}

bool Schedule::fits(std::int64_t tokens) const {
  if (!options_.pages_max) return true;
  return PageTables::pages_for(tokens) <= *options_.pages_max - pages_.used() + pages_kept();
}

bool Schedule::has_room(std::int64_t tokens) const {
  const bool parked = std::ranges::any_of(states_, [](const Entry& e) { return e.second.stand == Stand::kParked; });
  return !parked && fits(tokens + kKvPageTokens);  // and a page to grow
}

/// The oldest that is parked goes on once it has room, one a step.
void Schedule::unpark() {
  Entry* oldest = nullptr;
  for (Entry& entry : states_) {
    if (entry.second.stand != Stand::kParked) continue;
    if (oldest == nullptr || entry.second.order < oldest->second.order) oldest = &entry;
  }
  if (oldest == nullptr) return;
  // Nodes must have heard that its pages are free before it gets others.
  if (std::ranges::find(released_, oldest->first) != released_.end()) return;
  const std::size_t tokens = std::max(oldest->second.tokens.size() + 1, oldest->second.encoded.size());
  if (!fits(static_cast<std::int64_t>(tokens))) return;
  oldest->second.stand = Stand::kRunning;
  index(*oldest);
}

void Schedule::park(Entry& entry) {
  auto& [id, state] = entry;
  prefixes_.remove(id, state.hashes);
  state.hashes.clear();
  pages_.release(id);
  released_.push_back(id);
  state.stand = Stand::kParked;
  state.submitted = 0;
  state.proposed.clear();
  state.begun = false;
  state.encoder_submitted = false;
  ++preempted_;
}

Schedule::Entry* Schedule::youngest_beside(const Entry& entry, const Batch& batch) {
  Entry* youngest = nullptr;
  for (Entry& other : states_) {
    if (other.second.stand != Stand::kRunning || other.first == entry.first || contains(batch, other.first)) continue;
    if (!pages_.has(other.first)) continue;
    if (youngest == nullptr || other.second.order > youngest->second.order) youngest = &other;
  }
  return youngest;
}

/// Pages for `tokens` of this sequence: free ones, those of what is kept, those of a younger sequence; else it gives up
/// its own where it is the youngest, or waits for the next step. False: it has none for this step.
bool Schedule::make_room(Entry& entry, std::size_t tokens, const Batch& batch) {
  const auto needed = static_cast<std::int64_t>(std::max(tokens, entry.second.encoded.size()));
  while (!pages_.reserve(entry.first, needed)) {
    if (pages_kept() > 0) {
      forget_oldest_kept();
      continue;
    }
    Entry* younger = youngest_beside(entry, batch);
    if (younger != nullptr && younger->second.order > entry.second.order) {
      park(*younger);
      continue;
    }
    if (younger != nullptr) park(entry);
    return false;
  }
  return true;
}

void Schedule::replay(int depth) {
  options_.depth = depth;
  backlog_ = {};
  under_way_ = 0;
  shared_.clear();
  released_.clear();
  prefixes_.clear();
  pages_ = PageTables(options_.pages_max);
  std::erase_if(states_, [](const Entry& entry) { return entry.second.stand == Stand::kKept; });
  for (Entry& entry : states_) {
    State& state = entry.second;
    state.submitted = 0;
    state.proposed.clear();
    state.drafted.clear();
    state.tried = 0;
    state.encoder_submitted = false;
    state.waiting = false;
    state.begun = false;
    state.hashes.clear();
    if (state.stand == Stand::kRunning) index(entry);
  }
}

bool Schedule::idle() const {
  return under_way_ == 0 && released_.empty() &&
         std::ranges::all_of(states_, [](const Entry& entry) { return entry.second.stand == Stand::kKept; });
}

}  // namespace butterfly
