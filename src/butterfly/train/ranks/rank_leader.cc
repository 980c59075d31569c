#include "butterfly/train/ranks/rank_leader.h"

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/ranks/rank_child.h"

namespace butterfly {
namespace {

constexpr int kUnharmedEpochsMax = 3;  // in a row that end although nobody is lost

class Leader {
 public:
  Leader(OtherRanks& source, const RunConfig& config, const TrainObserver& observer, const std::stop_token& stop,
         std::chrono::milliseconds member_timeout)
      : source_(source), config_(config), observer_(observer), stop_(stop), member_timeout_(member_timeout) {}
  ~Leader() {
    source_.run_is_over();
    for (LedRank& rank : others_) {
      [[maybe_unused]] const Status told = rank.control.send({.kind = RankMessageKind::kEnd});
    }
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Result<TrainResult> run() {
    BF_ASSIGN_OR_RETURN(others_, source_.start());
    for (const LedRank& rank : others_) note("rank {} is {}", rank.number, rank.title);
    int unharmed = 0;
    for (Epoch epoch{1};; ++epoch.value) {
      auto result = run_epoch(epoch);
      if (result) return result;
      if (!epochs_.empty()) epochs_.back()->abort();
      if (!ends_epoch(result.error())) return result;
      const std::size_t before = others_.size();
      BF_TRY(gather_survivors(epoch));
      const std::size_t left = others_.size();
      admit();
      unharmed = left == before && others_.size() == left ? unharmed + 1 : 0;
      if (unharmed == kUnharmedEpochsMax) {
        return make_error(ErrorCode::kUnavailable, "{} epochs ended although no rank is lost, the last one by: {}",
                          unharmed, result.error().message);
      }
      note("epoch {} ended ({}); {} of {} ranks go on", epoch.value, result.error().message, left + 1, before + 1);
    }
  }

 private:
  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    if (observer_.note) observer_.note(fmt::format(text, std::forward<Args>(args)...));
  }

  Result<TrainResult> run_epoch(Epoch epoch);
  Status nothing_new();
  Status gather_survivors(Epoch epoch);
  void admit();
  Result<bool> survives(LedRank& rank, Epoch epoch, Deadline deadline);

  OtherRanks& source_;
  const RunConfig& config_;
  const TrainObserver& observer_;
  const std::stop_token stop_;
  const std::chrono::milliseconds member_timeout_;
  std::vector<LedRank> others_;                       // who is left of them, ascending
  std::vector<std::unique_ptr<Collectives>> epochs_;  // the trainer holds the one before, until it adopts another
  std::unique_ptr<RankTrainer> trainer_;
};

Result<TrainResult> Leader::run_epoch(Epoch epoch) {
  std::vector<RankProcess> members{{.number = 0, .address = kNoAddress}};
  for (const LedRank& rank : others_) members.push_back({.number = rank.number, .address = rank.address});
  for (LedRank& rank : others_) {
    BF_TRY(rank.control.send({.kind = RankMessageKind::kEpoch, .epoch = epoch, .members = members}));
  }
  Collectives* collectives = nullptr;
  if (!others_.empty()) {
    BF_ASSIGN_OR_RETURN(auto made, source_.connect(members, epoch, [this] { return nothing_new(); }));
    epochs_.push_back(std::move(made));
    collectives = epochs_.back().get();
  }
  TrainRank place = train_rank(config_, members, 0, collectives);
  place.others_wait = [this] { return source_.others_ready(others_.size()); };
  if (trainer_) {
    BF_TRY(trainer_->adopt(place));
    // With them goes what this process has mapped of lost ranks' memory.
    if (collectives != nullptr) epochs_.erase(epochs_.begin(), epochs_.end() - 1);
  } else {
    BF_ASSIGN_OR_RETURN(trainer_, source_.make_trainer(place));
  }
  return trainer_->run(observer_, stop_);
}

/// An error where a rank has something to say, which is kept, or is gone.
Status Leader::nothing_new() {
  for (LedRank& rank : others_) {
    auto message = rank.control.receive(std::chrono::steady_clock::now());
    if (message) {
      rank.held = std::move(*message);
      return make_error(ErrorCode::kUnavailable, "rank {} cannot take part: {}", rank.number, rank.held->text);
    }
    if (message.error().code != ErrorCode::kTimeout) return tl::unexpected(message.error());
  }
  return {};
}

/// Leaves those in others_ who have left the epoch and can begin another. Errors: of a rank that no epoch would mend.
Status Leader::gather_survivors(Epoch epoch) {
  for (LedRank& rank : others_) {
    // A rank that does not hear it is found out below.
    [[maybe_unused]] const Status told = rank.control.send({.kind = RankMessageKind::kAbandon, .epoch = epoch});
  }
  const Deadline deadline = std::chrono::steady_clock::now() + member_timeout_;
  for (auto rank = others_.begin(); rank != others_.end();) {
    BF_ASSIGN_OR_RETURN(const bool goes_on, survives(*rank, epoch, deadline));
    rank = goes_on ? std::next(rank) : others_.erase(rank);
  }
  return {};
}

void Leader::admit() {
  for (LedRank& rank : source_.admit(others_.size())) {
    note("rank {} is {}, which joins", rank.number, rank.title);
    others_.push_back(std::move(rank));
  }
}

Result<bool> Leader::survives(LedRank& rank, Epoch epoch, Deadline deadline) {
  for (;;) {
    Result<RankMessage> message = rank.held ? *std::exchange(rank.held, std::nullopt) : rank.control.receive(deadline);
    if (!message) {
      note("rank {} ({}) is lost: {}", rank.number, rank.title, source_.terminate(rank, message.error()));
      return false;
    }
    if (message->kind == RankMessageKind::kFailed) {
      return make_error(message->code, "rank {}: {}", rank.number, message->text);
    }
    if (message->kind == RankMessageKind::kLost && message->epoch == epoch) return true;
  }
}

}  // namespace

Result<TrainResult> lead_ranks(OtherRanks& others, const RunConfig& config, const TrainObserver& observer,
                               const std::stop_token& stop, std::chrono::milliseconds member_timeout) {
  return Leader(others, config, observer, stop, member_timeout).run();
}

}  // namespace butterfly
