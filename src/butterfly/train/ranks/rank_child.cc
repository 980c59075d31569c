#include "butterfly/train/ranks/rank_child.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/ranks/rank_control.h"

namespace butterfly {
namespace {

class Child {
 public:
  Child(const RankChild& child, const RunConfig& config, const RanksOptions& options)
      : child_(child), config_(config), options_(options), control_(child.leader) {}

  Status run() {
    // The trainer notices at its next exchange with others.
    const std::stop_callback give_up(child_.stop, [this] {
      control_.close();
      std::lock_guard lock(mutex_);
      if (!epochs_.empty()) epochs_.back()->abort();
    });
    for (;;) {
      BF_ASSIGN_OR_RETURN(const RankMessage message, next_message());
      if (message.kind == RankMessageKind::kEnd) return {};
      if (message.kind == RankMessageKind::kAbandon) BF_TRY(leave(message.epoch, "rank 0 said so"));
      if (message.kind == RankMessageKind::kEpoch) BF_TRY(take_part(message));
    }
  }

 private:
  /// However long the run takes: a process that is gone closes its connection.
  Result<RankMessage> next_message() {
    if (held_) return *std::exchange(held_, std::nullopt);
    auto message = control_.receive(after_ms(kForeverMs));
    if (message) return message;
    return make_error(ErrorCode::kUnavailable,
                      "rank {} ends: rank 0, which keeps the run, is gone ({}); its last checkpoint is what remains",
                      child_.number, message.error().message);
  }

  /// An error where rank 0 has something to say, which is kept for next_message().
  Status nothing_new() {
    auto message = control_.receive(std::chrono::steady_clock::now());
    if (message) {
      held_ = std::move(*message);
      return make_error(ErrorCode::kUnavailable, "rank 0 has ended the epoch");
    }
    if (message.error().code == ErrorCode::kTimeout) return {};
    return tl::unexpected(message.error());
  }

  /// Tells rank 0 once for each epoch.
  Status leave(Epoch epoch, const std::string& why) {
    if (left_ >= epoch) return {};
    left_ = epoch;
    return control_.send({.kind = RankMessageKind::kLost, .epoch = epoch, .text = why});
  }

  /// Errors: those that no other epoch would mend.
  Status take_part(const RankMessage& message) {
    Status done = train(message);
    if (done) return {};
    if (current_ != nullptr) current_->abort();
    if (ends_epoch(done.error())) return leave(message.epoch, done.error().message);
    BF_TRY(control_.send({.kind = RankMessageKind::kFailed,
                          .epoch = message.epoch,
                          .text = done.error().message,
                          .code = done.error().code}));
    return done;
  }

  Status train(const RankMessage& message) {
    const std::vector<RankProcess>& members = message.members;
    BF_TRY(check_speeds(members));
    const auto me = std::ranges::find(members, child_.number, &RankProcess::number);
    if (me == members.end()) {
      return make_error(ErrorCode::kProtocol, "epoch {} has no rank for process {}", message.epoch.value,
                        child_.number);
    }
    const int rank = static_cast<int>(me - members.begin());
    if (rank == 0) return make_error(ErrorCode::kProtocol, "process {} was told to be rank 0", child_.number);
    MeshOptions mesh = child_.mesh;
    mesh.rank = rank;
    mesh.epoch = message.epoch;
    mesh.still_wanted = [this] { return nothing_new(); };
    BF_ASSIGN_OR_RETURN(auto collectives, connect_epoch(child_.listener, members, mesh, config_, options_));
    BF_TRY(take(std::move(collectives)));
    const TrainRank place = train_rank(config_, members, rank, current_);
    if (trainer_) {
      BF_TRY(trainer_->adopt(place));
      forget_before();
    } else {
      BF_ASSIGN_OR_RETURN(trainer_, options_.make_trainer(config_, place));
    }
    if (child_.began) child_.began(message.epoch, rank, static_cast<int>(members.size()));
    if (child_.observer.note)
      child_.observer.note(fmt::format("epoch {}: rank {} of {}", message.epoch.value, rank, members.size()));
    BF_TRY(trainer_->run(child_.observer, child_.run_end));
    return {};
  }

  /// Each member's speed is in the configuration, where any is.
  Status check_speeds(const std::vector<RankProcess>& members) const {
    const std::size_t speeds = config_.parallel.speeds.size();
    for (const RankProcess& one : members) {
      if (speeds == 0 || static_cast<std::size_t>(one.number) < speeds) continue;
      return make_error(ErrorCode::kProtocol, "an epoch with rank {}, the run has the speeds of {}", one.number,
                        speeds);
    }
    return {};
  }

  Status take(std::unique_ptr<Collectives> collectives) {
    std::lock_guard lock(mutex_);
    current_ = collectives.get();
    epochs_.push_back(std::move(collectives));
    if (!child_.stop.stop_requested()) return {};
    return make_error(ErrorCode::kUnavailable, "rank {} was told to give the run up", child_.number);
  }

  /// What the trainer held before: with it goes what it has mapped of lost ranks' memory.
  void forget_before() {
    std::lock_guard lock(mutex_);
    epochs_.erase(epochs_.begin(), epochs_.end() - 1);
  }

  static constexpr std::int64_t kForeverMs = std::int64_t{1000} * 3600 * 24 * 365;

  const RankChild child_;
  const RunConfig& config_;
  const RanksOptions& options_;
  RankControl control_;
  std::optional<RankMessage> held_;
  Epoch left_{};                                      // the last
  Collectives* current_ = nullptr;                    // the last of epochs_
  std::mutex mutex_;                                  // guards epochs_ against a stop
  std::vector<std::unique_ptr<Collectives>> epochs_;  // the trainer holds the one before, until it adopts another
  std::unique_ptr<RankTrainer> trainer_;
};

}  // namespace

Result<std::unique_ptr<Collectives>> connect_epoch(Listener& listener, const std::vector<RankProcess>& members,
                                                   MeshOptions mesh, const RunConfig& config,
                                                   const RanksOptions& options) {
  for (const RankProcess& member : members) mesh.addresses.push_back(member.address);
  mesh.dialling = MeshDialling::kHigherRanks;
  BF_ASSIGN_OR_RETURN(auto channels,
                      connect_mesh(listener, mesh, std::chrono::steady_clock::now() + options.member_timeout));
  return make_collectives(
      mesh.rank, std::move(channels),
      {.epoch = mesh.epoch,
       .member_timeout = options.member_timeout,
       .shared_memory = config.parallel.shared_memory ? options.shared_memory : SharedMemoryUse::kForbidden});
}

TrainRank train_rank(const RunConfig& config, const std::vector<RankProcess>& members, int rank,
                     Collectives* collectives) {
  TrainRank place{.rank = rank, .size = static_cast<int>(members.size()), .collectives = collectives};
  if (config.parallel.speeds.empty()) return place;
  for (const RankProcess& member : members) {
    place.speeds.push_back(config.parallel.speeds[static_cast<std::size_t>(member.number)]);
  }
  return place;
}

Status run_rank_child(const RankChild& child, const RunConfig& config, const RanksOptions& options) {
  return Child(child, config, options).run();
}

}  // namespace butterfly
