// Those who want to know something of a node but none of its work: questions about its status, and probes of its links.
// Each gets a thread and little time, but who has this process recorded, whose connection stays; too many are turned
// away. Meters what the process uses meanwhile. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>

#include "butterfly/cluster/control/control_messages.h"
#include "butterfly/cluster/control/link_book.h"
#include "butterfly/machine/usage/process_usage.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

class StatusServer {
 public:
  using StatusFunction = std::function<void(control::ControlMessage& answer)>;

  /// What a node answers; called from several threads.
  struct Answers {
    StatusFunction status{};
    /// Whether this is the name of the session that the node works in; null: it is no worker, and measures no links for
    /// others. Only the session's coordinator and its workers know it.
    std::function<bool(const SessionId&)> is_session{};
    /// Plans again and says what came of it; null: this node does not plan.
    std::function<Result<std::string>()> rebalance{};
    /// Seconds that the node has worked since it began; null: it does not work itself.
    std::function<double()> busy_s{};
  };
  StatusServer(NodeAccess access, Answers answers);
  /// Gives up what is under way.
  ~StatusServer();

  /// Takes arrivals of the roles status and probe; false for others.
  bool receive(Arrival& arrival);

 private:
  struct Visit {
    std::shared_ptr<Channel> channel;  // closed by us to end the visit, used by its thread; null once it is over
    std::atomic<bool> over{false};
    std::jthread thread;
  };
  static constexpr std::size_t kVisitsMax = 16;

  void answer(const std::shared_ptr<Channel>& channel, const SessionId& session);
  Status may_dial(const SessionId& session) const;
  void answer_links(const control::MeasureLinks& question, const SessionId& session, const Channel& client,
                    control::ControlMessage& said);
  void answer_rebalance(control::ControlMessage& said) const;
  void add_usage(control::ControlMessage& said) const;
  static void echo(Channel& channel);

  const NodeAccess access_;
  const Answers answers_;
  std::stop_source ending_;
  const UsageMeter usage_;
  LinkBook links_;
  std::mutex mutex_;
  std::list<Visit> visits_;
};

}  // namespace butterfly
