// Memory that an owner holds as long as a value lives. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "butterfly/trace/trace.h"

namespace butterfly::trace {

class Held {
 public:
  Held() = default;
  Held(Owner owner, std::uint64_t bytes) : owner_(owner), bytes_(static_cast<std::int64_t>(bytes)) {
    hold(owner_, bytes_);
  }
  Held(Held&& other) noexcept : owner_(other.owner_), bytes_(std::exchange(other.bytes_, 0)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Held() {
    if (bytes_ != 0) hold(owner_, -bytes_);
  }

 private:
  Owner owner_ = Owner::kBuffers;
  std::int64_t bytes_ = 0;
};

}  // namespace butterfly::trace
