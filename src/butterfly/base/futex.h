// Sleeping on a word of memory until another thread changes it and says so, as Linux offers it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace butterfly {

/// Who may sleep on a word: threads of this process, which is cheaper, or of any process that maps it.
enum class FutexScope : std::uint8_t { kProcess, kMachine };

/// While the word is `seen`, and not for longer than this; may end earlier, so the caller looks again.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds at_most,
                       FutexScope scope) {
  const timespec timeout{.tv_sec = at_most.count() / 1000, .tv_nsec = at_most.count() % 1000 * 1'000'000};
  const int operation = scope == FutexScope::kProcess ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
  ::syscall(SYS_futex, &word, operation, seen, &timeout, nullptr, 0);
}

/// All who sleep on the word, which has been changed.
inline void futex_wake(std::atomic<std::uint32_t>& word, FutexScope scope) {
  const int operation = scope == FutexScope::kProcess ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE;
  ::syscall(SYS_futex, &word, operation, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace butterfly
