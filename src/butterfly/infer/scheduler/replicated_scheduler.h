// A scheduler for each replica of a model, that is for nodes of its own that hold all of it. A request goes to the
// replica that has the least to compute. Where a replica loses its nodes, its texts go on over the others, from the
// token where they were and with the same tokens.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <unordered_map>
#include <vector>

#include "butterfly/infer/scheduler/scheduler.h"

namespace butterfly {

struct ModelReplica {
  Pipeline* pipeline = nullptr;
  SchedulerOptions options{};  // drafters belong to one replica each
};

class ReplicatedScheduler {
 public:
  using Id = std::uint64_t;

  /// One replica at least; pipelines and tokenizer outlive the scheduler. `ended` is called after each text by the
  /// thread that computed it, with the number of the replica.
  ReplicatedScheduler(const std::vector<ModelReplica>& replicas, const Tokenizer& tokenizer,
                      std::function<void(std::size_t replica)> ended = {});
  ~ReplicatedScheduler();

  /// As Scheduler::submit(). The observer is called by the thread of the replica where the text is, by one at a time.
  Result<Id> submit(Submission submission, RequestObserver observer);
  void cancel(Id id);

  /// Computes until `stop`: the first replica by this thread, each other one by a thread of its own. Errors: as
  /// Scheduler::run().
  Status run(const std::stop_token& stop);

  /// A replica has too few nodes, or enough again. By the thread that computes it.
  void set_up(std::size_t replica, bool up);
  bool is_up(std::size_t replica) const;
  bool any_up() const;

  std::size_t size() const { return replicas_.size(); }
  SchedulerStats stats() const;  // of all replicas together

 private:
  using Clock = std::chrono::steady_clock;
  class WatchedPipeline;
  /// Where a text is, and what it costs there.
  struct Place {
    std::size_t replica = 0;
    Scheduler::Id id = 0;
    std::int64_t tokens = 0;
  };
  struct Member {
    std::unique_ptr<WatchedPipeline> pipeline{};
    std::unique_ptr<Scheduler> scheduler{};
    bool up = true;
    Clock::time_point failed{};  // when it could not recover last: it is tried again some time later
    std::int64_t tokens = 0;     // to compute
  };

  std::size_t choose(std::int64_t tokens, const std::vector<std::uint64_t>& pages) const;
  void remember(const std::vector<std::uint64_t>& pages, std::size_t replica);
  void lose(std::size_t replica, bool failed);
  void end(Id id);

  const std::function<void(std::size_t replica)> ended_;
  mutable std::mutex mutex_;  // guards all below; a scheduler's own is taken after it
  std::map<Id, Place> places_;
  Id next_id_ = 1;
  std::unordered_map<std::uint64_t, std::size_t> holders_;  // replicas, by the hash of a prompt's beginning
  std::deque<std::uint64_t> remembered_;                    // the keys of holders_, oldest first
  std::vector<Member> replicas_;                            // first to go: they call what is above
};

}  // namespace butterfly
