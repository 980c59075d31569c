#include "butterfly/wire/channel/ack_watch.h"

#include <algorithm>

namespace butterfly {

std::chrono::milliseconds AckWatch::owed(const Acknowledgements& seen, std::chrono::steady_clock::time_point now) {
  if (!seen.awaited) since_.reset();
  if (seen.awaited && (!since_ || seen.bytes != bytes_)) since_ = now;
  bytes_ = seen.bytes;
  if (!since_) return std::chrono::milliseconds(0);
  // A peer whose buffers are full says the same again: it is there.
  return std::min(std::chrono::duration_cast<std::chrono::milliseconds>(now - *since_), seen.last_came);
}

}  // namespace butterfly
