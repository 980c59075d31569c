// What the span of a collective says: the members, their data as [in] elements of [out] bytes, and what this one sent.
#pragma once

#include <cstdint>

#include "butterfly/trace/trace.h"

namespace butterfly {

/// `data_bytes` of elements of `element_bytes`, which divides them. More elements than a span can say become larger.
inline trace::Work collective_work(int members, std::uint64_t data_bytes, std::uint64_t element_bytes,
                                   std::uint64_t sent_bytes) {
  while (data_bytes / element_bytes > UINT32_MAX) element_bytes *= 2;
  return {.number = static_cast<std::uint32_t>(members),
          .in = static_cast<std::uint32_t>(data_bytes / element_bytes),
          .out = static_cast<std::uint32_t>(element_bytes),
          .bytes = sent_bytes};
}

}  // namespace butterfly
