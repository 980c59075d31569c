// How members who have an Exchange come to have memory of one of them mapped: who says where it is, and from which of
// them it comes, in rounds that all of them make. A member that fails says so to the others, and all go without. Plain
// functions, called by all `members` at once with the same list, ascending, themselves among it.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>
#include <vector>

#include "butterfly/machine/shared_memory.h"
#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

/// What is said to some members, and room for what they say.
class MemberRound {
 public:
  explicit MemberRound(int members) : to_(static_cast<std::size_t>(members)), from_(to_.size()), answers_(to_.size()) {}

  void say(int member, ByteSpan bytes) { to_[static_cast<std::size_t>(member)] = bytes; }
  void hear(int member, std::size_t bytes);
  Status run(Exchange& exchange) { return exchange.exchange(to_, from_); }
  ByteSpan heard(int member) const { return answers_[static_cast<std::size_t>(member)]; }

 private:
  std::vector<ByteSpan> to_;
  std::vector<MutableByteSpan> from_;
  std::vector<std::vector<std::byte>> answers_;
};

/// As it is said in a round: of a known length, with zeros behind it.
std::vector<std::byte> padded(std::string_view text, std::size_t bytes);

/// Each member says yes or no to the others; whether all said yes. Errors here and below: those of the exchange.
Result<bool> all_agree(Exchange& exchange, const std::vector<int>& members, bool mine);

/// Gives the others the memory of this descriptor; -1: there is none. Whether they were given it: that they have mapped
/// it, all_agree() finds out.
Result<bool> give_memory(Exchange& exchange, const std::vector<int>& members, int descriptor);

/// Takes memory of `bytes` bytes from its owner; nothing where that fails.
Result<std::optional<SharedMemory>> take_memory(Exchange& exchange, const std::vector<int>& members, int owner,
                                                std::uint64_t bytes);

}  // namespace butterfly
