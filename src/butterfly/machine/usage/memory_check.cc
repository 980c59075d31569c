#include "butterfly/machine/usage/memory_check.h"

#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"

namespace butterfly {

Status check_memory(std::uint64_t bytes, std::string_view what) {
  // Looking at the machine takes milliseconds.
  constexpr std::uint64_t kSmall = std::uint64_t{64} << 20;
  if (bytes <= kSmall) return {};
  const auto machine = detect_topology();
  if (!machine || machine->available_memory_bytes == 0 || bytes <= machine->available_memory_bytes) return {};
  return make_error(ErrorCode::kNoMemory, "{} take {}, {} are free: {} are missing", what, format_bytes(bytes),
                    format_bytes(machine->available_memory_bytes),
                    format_bytes(bytes - machine->available_memory_bytes));
}

}  // namespace butterfly
