// A fixed team of threads, started once, that runs one function on every member and waits: the only way kernels
// get parallel. The caller is member 0. Waits spin briefly, then block. run() is not reentrant and belongs to one
// calling thread at a time; the team owns its threads and joins them in its destructor.
#pragma once

#include <memory>

#include "butterfly/base/range.h"

namespace butterfly {

class ThreadTeam {
 public:
  /// threads >= 1; 1 runs everything on the caller.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;

  /// Calls work(member) once for each member in [0, size()), concurrently; returns when all are done.
  template <typename Work>
  void run(const Work& work) {
    run_erased([](const void* context, int member) { (*static_cast<const Work*>(context))(member); }, &work);
  }

 private:
  using Erased = void (*)(const void* context, int member);
  void run_erased(Erased function, const void* context);

  struct State;
  std::unique_ptr<State> state_;
};

/// The half-open range of [0, count) that `member` of `members` takes: contiguous, sizes differ by at most one.
using WorkRange = Range<long>;
constexpr WorkRange split_work(long count, int member, int members) {
  return {count * member / members, count * (member + 1) / members};
}

}  // namespace butterfly
