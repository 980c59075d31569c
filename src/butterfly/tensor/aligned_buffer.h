// Exactly sized, 64-byte aligned memory for what lives as long as a model: packed weights. Large buffers ask for huge
// pages (measured: reads reach the memory's ceiling only with them). Movable owner; not initialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Errors: kNoMemory naming the size.
  static Result<AlignedBuffer> create(std::uint64_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  AlignedBuffer(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace butterfly
