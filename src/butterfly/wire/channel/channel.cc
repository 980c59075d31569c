#include "butterfly/wire/channel/channel.h"

#include <algorithm>
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

Result<Payload> copy_payload(const Payload& payload, std::size_t from) {
  BF_ASSIGN_OR_RETURN(Payload copy, allocate_payload(payload.bytes.size()));
  std::ranges::copy(payload.bytes.subspan(from), copy.bytes.begin() + static_cast<std::ptrdiff_t>(from));
  return copy;
}

}  // namespace butterfly
