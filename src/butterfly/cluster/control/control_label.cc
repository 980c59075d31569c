#include "butterfly/cluster/control/control_label.h"

#include <algorithm>

namespace butterfly {
namespace {

constexpr std::size_t kIdentityBytes = std::tuple_size_v<WorkerIdentity>;
constexpr std::size_t kLostBytes = 1 + kIdentityBytes;  // behind the name: a zero byte and the identity

}  // namespace

std::string to_bytes(const WorkerIdentity& identity) {
  return std::string(as_text(identity));
}

std::optional<WorkerIdentity> read_worker_identity(const std::string& bytes) {
  if (bytes.size() != kIdentityBytes) return std::nullopt;
  WorkerIdentity identity{};
  std::ranges::copy(as_bytes(bytes), identity.begin());
  return identity;
}

std::string encode_control_label(const ControlLabel& label) {
  if (!label.lost) return label.coordinator.substr(0, kLabelBytesMax);
  return label.coordinator.substr(0, kLabelBytesMax - kLostBytes) + '\0' + to_bytes(*label.lost);
}

ControlLabel parse_control_label(const std::string& label) {
  if (label.size() < kLostBytes || label[label.size() - kLostBytes] != '\0') return {.coordinator = label};
  return {.coordinator = label.substr(0, label.size() - kLostBytes),
          .lost = read_worker_identity(label.substr(label.size() - kIdentityBytes))};
}

}  // namespace butterfly
