// The label of a control connection: who the coordinator is, and which worker it has lost and means to have again.
// Plain functions.
#pragma once

#include <optional>
#include <string>

#include "butterfly/wire/channel/frame.h"

namespace butterfly {

/// 128 random bits of a worker's process, known to it and its coordinators: an address can be written in many ways, and
/// another process may listen there tomorrow.
using WorkerIdentity = SessionId;

struct ControlLabel {
  std::string coordinator{};             // for people
  std::optional<WorkerIdentity> lost{};  // no connection with this worker is left here
};

/// At most kLabelBytesMax bytes; a longer name is cut.
std::string encode_control_label(const ControlLabel& label);
ControlLabel parse_control_label(const std::string& label);

/// The bytes of an identity as they are in control messages, and back; nothing for any other number of bytes.
std::string to_bytes(const WorkerIdentity& identity);
std::optional<WorkerIdentity> read_worker_identity(const std::string& bytes);

}  // namespace butterfly
