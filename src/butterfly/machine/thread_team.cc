#include "butterfly/machine/thread_team.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/base/log.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace butterfly {
namespace {

// Long enough for the gap between two kernels of one layer, short enough that a wrong guess costs less than a
// blocking wake-up does on a virtual machine (about 40 us).
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kPausesBetweenYields = 64;

// Members of all living teams of more than one: together they may spin only while each can have a core of its own.
std::atomic<int> living_members{0};

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// Returns when value differs from `old`: spins for kSpin where that is polite, then blocks.
template <typename Ready>
void wait_until(const std::atomic<int>& value, bool may_spin, const Ready& ready) {
  if (may_spin) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesBetweenYields; ++i) {
        if (ready(value.load(std::memory_order_acquire))) return;
        relax();
      }
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < deadline);
  }
  for (int seen = value.load(std::memory_order_acquire); !ready(seen); seen = value.load(std::memory_order_acquire)) {
    value.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace

struct ThreadTeam::State {
  // Each on its own cache line: members poll `round` while finishing members count down `unfinished`.
  alignas(64) std::atomic<int> round{0};
  alignas(64) std::atomic<int> unfinished{0};
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
    unfinished.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
    // Sequentially consistent, as notify_all's look at the number of sleepers must not pass this store.
    round.fetch_add(1);
    round.notify_all();
  }

  void member_loop(int member) {
    for (int seen = 0;;) {
      wait_until(round, may_spin(), [seen](int now) { return now != seen; });
      seen = round.load(std::memory_order_acquire);
      if (stop) return;
      function(context, member);
      if (unfinished.fetch_sub(1) == 1) unfinished.notify_one();
    }
  }
};

ThreadTeam::ThreadTeam(int threads) : state_(std::make_unique<State>()) {
  BF_CHECK(threads >= 1, "a team has at least one member");
  if (threads == 1) return;
  state_->cores = available_cores();
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
  if (state_->threads.empty()) {
    function(context, 0);
    return;
  }
  state_->begin_round(function, context);
  function(context, 0);
  wait_until(state_->unfinished, state_->may_spin(), [](int left) { return left == 0; });
}

}  // namespace butterfly
