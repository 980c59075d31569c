// What a link is like, by messages to a node that echoes them (status_server.h): small ones first, larger ones as far
// as the link carries them in a tenth of a second. One thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "butterfly/cluster/control/node_status.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// The clock that a probe goes by; a test may have one of its own.
struct ProbeClock {
  std::function<Deadline()> now = [] { return std::chrono::steady_clock::now(); };
  std::function<void(std::chrono::microseconds)> sleep = [](std::chrono::microseconds time) {
    std::this_thread::sleep_for(time);
  };
};

/// See measure_link(), which connects. A slow link has fewer samples, and no sample of a size that it does not carry in
/// time. Errors: those of the channel.
Result<LinkStatus> probe_link(Channel& channel, Deadline deadline, const ProbeClock& clock = {});

}  // namespace butterfly
