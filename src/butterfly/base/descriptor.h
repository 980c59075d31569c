// Owner of a file descriptor: closes it when it goes. Movable; not thread-safe.
#pragma once

#include <unistd.h>

#include <utility>

namespace butterfly {

class Descriptor {
 public:
  Descriptor() = default;  // none
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }  // -1: none
  bool valid() const { return fd_ >= 0; }

  /// The descriptor is the caller's to close.
  int release() { return std::exchange(fd_, -1); }

 private:
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

  int fd_ = -1;
};

}  // namespace butterfly
