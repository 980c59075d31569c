// The other side of remote_recording.h: this process records itself for a client. Thread-safe.
#pragma once

#include <string>

#include "butterfly/cluster/control/control_link.h"

namespace butterfly {

/// After a RecordingWanted came over `link`: serves this client until its connection ends, or it is silent for too
/// long. One recording at a time in a process; a second client is told so. `role` is what this process is in the run,
/// such as "worker".
void serve_recording(ControlLink& link, const std::string& role);

}  // namespace butterfly
