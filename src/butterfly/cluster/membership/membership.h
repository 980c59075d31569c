// The workers of a coordinator, as they come and go, and the epochs that are made of them. A worker that is lost is
// dialled until it is back; workers that announce themselves are taken in. The membership owns its connections and
// threads and must outlive its epochs. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/cluster/membership/cluster_session.h"

namespace butterfly {

struct MembershipOptions {
  std::vector<std::string> workers{};  // "host:port"
  std::string join_at{};               // "host:port" where workers may announce themselves; empty: nowhere
  ClusterOptions cluster{};
  /// Called from other threads when a user asks for another plan; returns what came of it, for people. Null: plans
  /// stay.
  std::function<Result<std::string>()> rebalance{};
};

/// options.name, else "HOST, process N": what workers are told.
std::string coordinator_name(const ClusterOptions& options);

/// Who can be given work at one moment.
struct Members {
  std::uint64_t version = 0;  // another membership has another number
  std::vector<NodeDescriptor>
      nodes{};  // what a plan is made from; in the order in which their addresses were first known
};

class Membership {
 public:
  /// Reaches every worker that is named, in parallel. Errors name the worker: kUnavailable (unreachable, or busy with
  /// another coordinator, who is named), kProtocol (version), kTimeout, kCancelled (`stop`), kInvalidArgument (the same
  /// address twice, nobody named and nowhere to join); those of Listener::create() for join_at.
  static Result<std::unique_ptr<Membership>> create(const MembershipOptions& options, Deadline deadline,
                                                    const std::stop_token& stop = {});

  /// Releases the workers, who are free for other coordinators on return.
  virtual ~Membership() = default;

  virtual Members members() const = 0;
  virtual std::uint64_t version() const = 0;

  /// Waits for another membership than that of `version`. False: the deadline passed, or `stop` was requested.
  virtual bool wait_for_change(std::uint64_t version, Deadline deadline, std::stop_token stop) const = 0;

  /// A sentence about the last change.
  virtual std::string last_change() const = 0;

  /// The next epoch, of these members, not yet started. Members that are gone meanwhile make its start fail. Only one
  /// session runs at a time, but another may prepare beside it.
  virtual std::unique_ptr<ClusterSession> next_epoch(const Members& members) = 0;

  /// Links between these members, [from][to], as they measured them in the last minutes or measure them now, one pair
  /// after the other; zeros on the diagonal and where a link could not be measured. Takes a tenth of a second a pair:
  /// not for a generation that is under way.
  virtual std::vector<std::vector<LinkDescriptor>> links(const Members& members, Deadline deadline,
                                                         const std::stop_token& stop = {}) const = 0;

  /// Does without this worker for a while, although it answers: it cannot work with the others.
  virtual void leave_out(const std::string& address) = 0;

  /// The number of the epoch that was made last; the first is 1.
  virtual Epoch epoch() const = 0;

  /// Where workers announce themselves, with the port that the system chose; empty: nowhere.
  virtual std::string join_address() const = 0;
};

}  // namespace butterfly
