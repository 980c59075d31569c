#include "butterfly/wire/channel.h"

#include <cstdlib>

#include "butterfly/base/units.h"

namespace butterfly {

Result<Payload> allocate_payload(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 64;
  if (bytes == 0) return Payload{};
  const auto padded = checked_add(bytes, kAlignment - 1);
  void* memory = padded ? std::aligned_alloc(kAlignment, *padded / kAlignment * kAlignment) : nullptr;
  if (memory == nullptr) {
    return make_error(ErrorCode::kNoMemory, "no memory for a payload of {}", format_bytes(bytes));
  }
  std::shared_ptr<void> owner(memory, std::free);
  return Payload{.owner = std::move(owner), .bytes = {static_cast<std::byte*>(memory), bytes}};
}

}  // namespace butterfly
