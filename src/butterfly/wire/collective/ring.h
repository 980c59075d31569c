// A ring: parts go round from each member to the next one, in pieces, so that sending, receiving and reducing overlap.
// 2 (n-1) steps with a reduction in the first n-1 are an all-reduce, n-1 steps without one an all-gather. A member that
// waits has sent everything of the step it waits in, and sending never waits, so nobody waits in a circle.
#pragma once

#include <span>

#include "butterfly/wire/collective/collectives.h"
#include "butterfly/wire/collective/piece_channels.h"

namespace butterfly {

struct RingOptions {
  int rank = 0;
  int steps = 0;                           // part rank - t goes out in step t, and part rank - t - 1 comes in
  int reduce_steps = 0;                    // how many steps at first add what comes in; the rest put it down
  std::size_t piece_bytes = 128 * 1024;    // a multiple of the element's size
  MutableByteSpan scratch{};               // piece_bytes, where reduce_steps > 0
  const ReduceFunction* reduce = nullptr;  // where reduce_steps > 0
};

class Ring {
 public:
  /// One part for each member, of sizes that all members agree on.
  Ring(PieceChannels& channels, std::span<const MutableByteSpan> parts, const RingOptions& options)
      : channels_(channels), parts_(parts), options_(options) {}

  /// Errors: those of the channels, kProtocol.
  Status run();

  std::uint64_t bytes_sent() const { return sent_; }

 private:
  /// A place in the stream of pieces that goes out or comes in.
  struct Cursor {
    int step = 0;
    std::size_t at = 0;  // byte of that step's part
  };

  MutableByteSpan part(int step) const;
  /// The piece at the cursor, which is moved over parts that are finished; nothing at the end. Step t takes in what
  /// step t + 1 sends, `lead` is 1 for the stream that comes in.
  MutableByteSpan next_piece(Cursor& cursor, int lead) const;
  bool may_send(std::size_t bytes) const;
  Status send_ready();
  Status receive(MutableByteSpan due);

  PieceChannels& channels_;
  const std::span<const MutableByteSpan> parts_;
  const RingOptions options_;
  Cursor sending_, receiving_;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace butterfly
