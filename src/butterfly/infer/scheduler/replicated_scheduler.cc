#include "butterfly/infer/scheduler/replicated_scheduler.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "butterfly/infer/scheduler/prefix_index.h"
#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

constexpr std::size_t kPagesMax = std::size_t{1} << 16;  // whose holders are remembered
constexpr int kAnswerTokens = 256;  // that an answer is taken to have at most: most end before they must
constexpr std::chrono::seconds kTryAgain{5};

void add(SchedulerStats& all, const SchedulerStats& one) {
  for (std::uint64_t SchedulerStats::*count :
       {&SchedulerStats::submitted, &SchedulerStats::finished, &SchedulerStats::refused, &SchedulerStats::cancelled,
        &SchedulerStats::failed, &SchedulerStats::prompt_tokens, &SchedulerStats::cached_tokens,
        &SchedulerStats::generated_tokens, &SchedulerStats::drafted_tokens, &SchedulerStats::accepted_tokens,
        &SchedulerStats::steps, &SchedulerStats::rows, &SchedulerStats::preempted, &SchedulerStats::recovered}) {
    all.*count += one.*count;
  }
  all.waiting += one.waiting;
  all.running += one.running;
  all.cache_pages += one.cache_pages;
  all.cache_pages_kept += one.cache_pages_kept;
  all.cache_pages_max += one.cache_pages_max;
  all.busy_s += one.busy_s;
}

}  // namespace

/// A replica's pipeline, and what becomes of its texts where it cannot be made ready again.
class ReplicatedScheduler::WatchedPipeline final : public Pipeline {
 public:
  WatchedPipeline(Pipeline& inner, std::function<void()> failed) : inner_(inner), failed_(std::move(failed)) {}

  Status submit(Step step) override { return inner_.submit(std::move(step)); }
  Result<Step> next() override { return inner_.next(); }
  Status recover(const Error& cause) override {
    Status status = inner_.recover(cause);
    if (!status) failed_();
    return status;
  }
  int depth() const override { return inner_.depth(); }

 private:
  Pipeline& inner_;
  const std::function<void()> failed_;
};

ReplicatedScheduler::ReplicatedScheduler(const std::vector<ModelReplica>& replicas, const Tokenizer& tokenizer,
                                         std::function<void(std::size_t replica)> ended)
    : ended_(std::move(ended)), replicas_(replicas.size()) {
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    replicas_[i].pipeline = std::make_unique<WatchedPipeline>(*replicas[i].pipeline, [this, i] { lose(i, true); });
    replicas_[i].scheduler = std::make_unique<Scheduler>(*replicas_[i].pipeline, tokenizer, replicas[i].options);
  }
}

ReplicatedScheduler::~ReplicatedScheduler() = default;

Result<ReplicatedScheduler::Id> ReplicatedScheduler::submit(Submission submission, RequestObserver observer) {
  const Request& request = submission.request;
  const std::vector<std::uint64_t> pages = prefix_hashes(request.prompt);
  const std::int64_t tokens =
      std::ssize(request.prompt) + std::ssize(request.encoded) + std::min(request.tokens_max, kAnswerTokens);
  const std::lock_guard lock(mutex_);
  const Id id = next_id_++;
  observer.done = [this, id, done = std::move(observer.done)](Result<Generation> generation) {
    end(id);
    if (done) done(std::move(generation));
  };
  const std::size_t replica = choose(tokens, pages);
  BF_ASSIGN_OR_RETURN(const Scheduler::Id there,
                      replicas_[replica].scheduler->submit(std::move(submission), std::move(observer)));
  replicas_[replica].tokens += tokens;
  places_.emplace(id, Place{.replica = replica, .id = there, .tokens = tokens});
  remember(pages, replica);
  return id;
}

void ReplicatedScheduler::cancel(Id id) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found != places_.end()) replicas_[found->second.replica].scheduler->cancel(found->second.id);
}

/// Where a text of this number of tokens would be computed first, less what is there of its prompt. Under the lock.
std::size_t ReplicatedScheduler::choose(std::int64_t tokens, const std::vector<std::uint64_t>& pages) const {
  std::vector<std::int64_t> known(replicas_.size(), 0);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto found = holders_.find(pages[i]);
    if (found == holders_.end()) break;
    known[found->second] = static_cast<std::int64_t>(i + 1) * kKvPageTokens;
  }
  const auto now = Clock::now();
  const auto usable = [&](const Member& member) {
    return member.up || (member.failed != Clock::time_point() && now - member.failed >= kTryAgain);
  };
  const bool any = std::ranges::any_of(replicas_, usable);
  std::size_t best = 0;
  std::optional<std::int64_t> least;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (any && !usable(replicas_[i])) continue;
    const std::int64_t needed = replicas_[i].tokens + tokens - known[i];
    if (least && needed >= *least) continue;
    least = needed;
    best = i;
  }
  return best;
}

/// Under the lock.
void ReplicatedScheduler::remember(const std::vector<std::uint64_t>& pages, std::size_t replica) {
  for (const std::uint64_t page : pages) {
    if (holders_.insert_or_assign(page, replica).second) remembered_.push_back(page);
  }
  for (; remembered_.size() > kPagesMax; remembered_.pop_front()) holders_.erase(remembered_.front());
}

void ReplicatedScheduler::end(Id id) {
  std::size_t replica = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(id);
    replica = found->second.replica;
    replicas_[replica].tokens -= found->second.tokens;
    places_.erase(found);
  }
  if (ended_) ended_(replica);
}

void ReplicatedScheduler::set_up(std::size_t replica, bool up) {
  if (!up) return lose(replica, false);
  const std::lock_guard lock(mutex_);
  replicas_[replica].up = true;
  replicas_[replica].failed = {};
}

/// Its texts go to the others where one is up; else they wait with it, or end with its error.
void ReplicatedScheduler::lose(std::size_t replica, bool failed) {
  const std::lock_guard lock(mutex_);
  Member& lost = replicas_[replica];
  lost.up = false;
  lost.failed = failed ? Clock::now() : Clock::time_point();
  if (std::ranges::none_of(replicas_, &Member::up)) return;
  std::erase_if(holders_, [&](const auto& entry) { return entry.second == replica; });
  std::erase_if(remembered_, [&](std::uint64_t page) { return !holders_.contains(page); });
  std::map<Scheduler::Id, Place*> here;
  for (auto& [id, place] : places_) {
    if (place.replica == replica) here.emplace(place.id, &place);
  }
  for (Scheduler::TextPtr& text : lost.scheduler->give_up()) {
    Place& place = *here.at(Scheduler::id_of(*text));
    lost.tokens -= place.tokens;
    place.replica = choose(place.tokens, {});
    Member& member = replicas_[place.replica];
    member.tokens += place.tokens;
    place.id = member.scheduler->take_over(std::move(text));
  }
}

bool ReplicatedScheduler::is_up(std::size_t replica) const {
  const std::lock_guard lock(mutex_);
  return replicas_[replica].up;
}

bool ReplicatedScheduler::any_up() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(replicas_, &Member::up);
}

Status ReplicatedScheduler::run(const std::stop_token& stop) {
  std::vector<Status> ended(replicas_.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      threads.emplace_back([this, &ended, &stop, i] { ended[i] = replicas_[i].scheduler->run(stop); });
    }
    ended[0] = replicas_[0].scheduler->run(stop);
  }
  for (const Status& status : ended) BF_TRY(status);
  return {};
}

SchedulerStats ReplicatedScheduler::stats() const {
  SchedulerStats all;
  for (const Member& member : replicas_) add(all, member.scheduler->stats());
  return all;
}

}  // namespace butterfly
