// A run whose processes are all started with one command (train --rendezvous): the one that can listen at the address
// where they meet is rank 0, the others are its workers for that one run.
#pragma once

#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly::app {

/// Null where another process listens there, or it is another machine's address. Errors: those of Listener::create().
Result<std::unique_ptr<Listener>> listen_at_rendezvous(const std::string& address, const NodeAccess& access);

/// A rank of the run that is led from parallel.rendezvous, until it is over; the exit code. Errors: those that end the
/// run here; kUnavailable where nobody leads there.
Result<int> take_part_at_rendezvous(const RunConfig& config, const NodeAccess& access);

}  // namespace butterfly::app
