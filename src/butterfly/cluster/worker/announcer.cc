#include "butterfly/cluster/worker/announcer.h"

#include <condition_variable>
#include <mutex>

#include "butterfly/base/log.h"

namespace butterfly {

Announcer::Announcer(const WorkerOptions& options, std::string address, std::function<bool()> wanted)
    : options_(options),
      thread_([this, mine = std::move(address), free = std::move(wanted)](const std::stop_token& stop) {
        run(mine, free, stop);
      }) {}

void Announcer::run(const std::string& address, const std::function<bool()>& wanted,
                    const std::stop_token& stop) const {
  constexpr std::chrono::milliseconds kInterval{500};
  constexpr std::int64_t kTimeoutMs = 2000;
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kJoin, .session = make_session_id(), .label = address};
  connecting.access = options_.access;
  connecting.stop = stop;
  std::mutex mutex;
  std::condition_variable_any pause;
  bool complained = false;
  while (!stop.stop_requested()) {
    if (wanted()) {
      const auto said = connect_tcp(options_.join, connecting, after_ms(kTimeoutMs));
      if (said) {
        complained = false;
      } else if (!stop.stop_requested() && !std::exchange(complained, true)) {
        log().warn("cannot announce this worker to {}, trying on: {}", options_.join, said.error().message);
      }
    }
    std::unique_lock lock(mutex);
    pause.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

}  // namespace butterfly
