// The processes that mpirun or srun started together, and collectives among them by MPI. One in a process, for as long
// as MPI is used. A build without MPI has another implementation of open(), which says so. Used by one thread, except
// for what Collectives allow.
#pragma once

#include <chrono>
#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

struct MpiOptions {
  /// For a member's next bytes, and for its answer when this one has given up.
  std::chrono::milliseconds member_timeout{60'000};
};

class MpiWorld {
 public:
  /// Begins MPI; without mpirun or srun this process is alone. Errors: kUnsupported (this build has no MPI, or one
  /// whose threads may not all call it).
  static Result<std::unique_ptr<MpiWorld>> open(const MpiOptions& options = {});
  virtual ~MpiWorld() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// How many machines the members are on, and how many of them are on this one.
  virtual int hosts() const = 0;
  virtual int members_here() const = 0;
  /// This member's share of the cores that the members of this machine may use: bound to cores of their own they have
  /// all of them, unbound they share.
  virtual int threads() const = 0;

  /// All sums are taken in the order of ranks.
  virtual Collectives& collectives() = 0;

  /// agree_on_outcome() of all members, also after the collectives have failed or were aborted. Errors besides: `mine`,
  /// or that a member did not come, where one never came.
  virtual Status settle(const Status& mine) = 0;

  /// Whether this member is the one to say what settle() returned: member 0, or each where not all came.
  virtual bool speaks() const = 0;

  /// Called last, by all. Where collectives have failed MPI cannot end in order any more: then the first member to call
  /// it ends all processes, with `exit_code`, and does not return; the others leave that to member 0 for a while, so
  /// that it can say why.
  virtual void end(int exit_code) = 0;
};

}  // namespace butterfly
