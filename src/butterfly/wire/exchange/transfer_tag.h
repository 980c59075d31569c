// The tag of a message that belongs to a transfer between members of a group: the number of the operation (24 bits)
// above the size of the whole transfer in bytes (40 bits). So members that disagree on either notice it.
#pragma once

#include <cstdint>

namespace butterfly {

inline constexpr int kTransferSizeBits = 40;

constexpr std::uint64_t transfer_tag(std::uint64_t sequence, std::uint64_t bytes) {
  constexpr std::uint64_t sequence_mask = (std::uint64_t{1} << (64 - kTransferSizeBits)) - 1;
  return (sequence & sequence_mask) << kTransferSizeBits | bytes;
}
constexpr std::uint64_t sequence_of_transfer(std::uint64_t tag) {
  return tag >> kTransferSizeBits;
}
constexpr std::uint64_t size_of_transfer(std::uint64_t tag) {
  return tag & ((std::uint64_t{1} << kTransferSizeBits) - 1);
}

}  // namespace butterfly
