#include "butterfly/train/sharding/share_numbers.h"

#include <cstring>

namespace butterfly {

Status share_numbers(Collectives* collectives, std::span<double> numbers) {
  if (collectives == nullptr || collectives->size() == 1) return {};
  const ReduceFunction add = [](MutableByteSpan into, ByteSpan from) {
    for (std::size_t at = 0; at < into.size(); at += sizeof(double)) {
      double sum = 0.0, term = 0.0;
      std::memcpy(&sum, into.data() + at, sizeof(double));
      std::memcpy(&term, from.data() + at, sizeof(double));
      sum += term;
      std::memcpy(into.data() + at, &sum, sizeof(double));
    }
  };
  return collectives->all_reduce(std::as_writable_bytes(numbers), sizeof(double), add, AllReduceAlgorithm::kAuto);
}

}  // namespace butterfly
