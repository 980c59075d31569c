#include "butterfly/machine/thread_team.h"

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/base/futex.h"
#include "butterfly/base/log.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace butterfly {
namespace {

// Long enough for the gap between two kernels of one layer, short enough that a wrong guess costs less than a
// blocking wake-up does on a virtual machine (about 40 us). Without yielding: on a machine that others use too, each
// yield gives away milliseconds, while a thread that sleeps is preferred when it wakes.
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kPausesBetweenLooks = 64;
constexpr std::chrono::milliseconds kSleep{1000};  // wakes come; this is for the eyes of a debugger

// Members of all living teams of more than one: together they may spin only while each can have a core of its own.
std::atomic<int> living_members{0};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// A number that changes seldom, and those who wait for it.
class Signal {
 public:
  std::uint32_t value() const { return word_.load(std::memory_order_acquire); }
  void set(std::uint32_t value) { word_.store(value, std::memory_order_relaxed); }

  /// What the number is then.
  std::uint32_t add(std::int32_t amount) {
    const auto change = static_cast<std::uint32_t>(amount);
    return word_.fetch_add(change) + change;
  }
  /// Who sleeps, after a change. Sequentially consistent, as wait(): of a change and a sleeper that come together, one
  /// sees the other.
  /// Whether a member slept.
  bool wake() {
    const bool asleep = sleepers_.load() > 0;
    if (asleep) futex_wake(word_, FutexScope::kProcess);
    return asleep;
  }

  /// Until `ready(number)`: spins for kSpin where that is polite, then sleeps.
  template <typename Ready>
  void wait(bool may_spin, const Ready& ready) {
    if (may_spin) {
      const auto deadline = std::chrono::steady_clock::now() + kSpin;
      do {
        for (int i = 0; i < kPausesBetweenLooks; ++i) {
          if (ready(value())) return;
          relax();
        }
      } while (std::chrono::steady_clock::now() < deadline);
    }
    sleepers_.fetch_add(1);
    for (std::uint32_t seen = word_.load(); !ready(seen); seen = word_.load()) {
      futex_wait(word_, seen, kSleep, FutexScope::kProcess);
    }
    sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<std::uint32_t> word_{0}, sleepers_{0};
};

}  // namespace

struct ThreadTeam::State {
  // Each on its own cache line: members poll `round` while finishing members count down `unfinished`.
  alignas(64) Signal round;
  alignas(64) Signal unfinished;
  alignas(64) Erased function = nullptr;  // written before `round` advances, read after
  const void* context = nullptr;
  bool stop = false;
  int cores = 1;
  int counted = 0;  // in living_members
  std::vector<std::thread> threads;

  bool may_spin() const { return living_members.load(std::memory_order_relaxed) <= cores; }

  void begin_round(Erased next_function, const void* next_context) {
    function = next_function;
    context = next_context;
    unfinished.set(static_cast<std::uint32_t>(threads.size()));
    round.add(1);
    if (round.wake()) trace::add(trace::Counter::kTeamWakes, 1);
  }

  void member_loop(int member) {
    for (std::uint32_t seen = 0;;) {
      round.wait(may_spin(), [seen](std::uint32_t now) { return now != seen; });
      seen = round.value();
      if (stop) return;
      function(context, member);
      if (unfinished.add(-1) == 0) unfinished.wake();
    }
  }
};

ThreadTeam::ThreadTeam(int threads) : state_(std::make_unique<State>()) {
  BF_CHECK(threads >= 1, "a team has at least one member");
  if (threads == 1) return;
  state_->cores = usable_threads();
  state_->counted = threads;
  living_members.fetch_add(state_->counted, std::memory_order_relaxed);
  state_->threads.reserve(static_cast<std::size_t>(threads - 1));
  for (int member = 1; member < threads; ++member) {
    try {
      state_->threads.emplace_back([state = state_.get(), member] { state->member_loop(member); });
    } catch (const std::system_error& error) {
      // Fewer threads give the same answer, later.
      log().warn("a team of {} threads goes on with {}: {}", threads, member, error.what());
      return;
    }
  }
}

ThreadTeam::~ThreadTeam() {
  living_members.fetch_sub(state_->counted, std::memory_order_relaxed);
  state_->stop = true;
  state_->begin_round(nullptr, nullptr);
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadTeam::size() const {
  return static_cast<int>(state_->threads.size()) + 1;
}

void ThreadTeam::run_erased(Erased function, const void* context) {
  trace::add(trace::Counter::kTeamRuns, 1);
  if (state_->threads.empty()) {
    function(context, 0);
    return;
  }
  state_->begin_round(function, context);
  function(context, 0);
  state_->unfinished.wait(state_->may_spin(), [](std::uint32_t left) { return left == 0; });
}

}  // namespace butterfly
