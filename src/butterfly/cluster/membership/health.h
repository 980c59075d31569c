// Whether a pipeline still works, and if not, who is to blame. When a node dies, its neighbours complain about closed
// connections, often before the death itself is noticed: complaints only count when no better cause turns up within a
// moment. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

class Health {
 public:
  /// `on_failure` is called once, without locks, from the thread that found the failure.
  explicit Health(std::function<void()> on_failure = {}) : on_failure_(std::move(on_failure)) {}

  /// A failure closes this channel, so that nobody waits on it any longer.
  void watch(std::shared_ptr<Channel> channel);

  /// A cause; the first one counts.
  void fail(Error error);

  /// A complaint; it becomes the cause where no other is found within kSettle.
  void suspect(Error error);

  std::optional<Error> failure() const;

  /// The cause behind an error that a channel of the pipeline gave, waiting a moment for it to be found; else the
  /// error.
  Error explain(const Error& seen);

  /// Sleeps until the deadline or retire(), and promotes a complaint that comes due meanwhile.
  void attend(Deadline until);

  /// The pipeline is being taken down: nothing is a failure from now on.
  void retire();

  static constexpr std::chrono::milliseconds kSettle{200};

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()> on_failure_;
  std::optional<Error> failure_;
  std::optional<Error> suspicion_;
  Deadline suspicion_due_{};
  bool retired_ = false;
  std::vector<std::shared_ptr<Channel>> channels_;
};

/// A watched channel as its user sees it: its errors name the cause. Closes the channel when it goes.
ChannelPtr make_pipeline_channel(std::shared_ptr<Channel> channel, std::shared_ptr<Health> health);

}  // namespace butterfly
