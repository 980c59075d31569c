#include "butterfly/wire/collective/ring.h"

#include <algorithm>

namespace butterfly {

Status Ring::run() {
  for (;;) {
    const MutableByteSpan due = next_piece(receiving_, 1);
    BF_TRY(send_ready());
    if (due.empty()) return {};
    BF_TRY(receive(due));
    receiving_.at += due.size();
    received_ += due.size();
  }
}

MutableByteSpan Ring::part(int step) const {
  const auto count = static_cast<int>(parts_.size());
  return parts_[static_cast<std::size_t>(((options_.rank - step) % count + count) % count)];
}

MutableByteSpan Ring::next_piece(Cursor& cursor, int lead) const {
  for (; cursor.step < options_.steps; ++cursor.step, cursor.at = 0) {
    const MutableByteSpan whole = part(cursor.step + lead);
    if (cursor.at < whole.size()) {
      return whole.subspan(cursor.at, std::min(options_.piece_bytes, whole.size() - cursor.at));
    }
  }
  return {};
}

bool Ring::may_send(std::size_t bytes) const {
  // What goes out in a step came in in the one before.
  const int source = sending_.step - 1;
  const bool here =
      source < 0 || receiving_.step > source || (receiving_.step == source && receiving_.at >= sending_.at + bytes);
  if (!here) return false;
  return sending_.step <= receiving_.step || sent_ < received_ + kPiecesAhead * options_.piece_bytes;
}

Status Ring::send_ready() {
  const int next = (options_.rank + 1) % static_cast<int>(parts_.size());
  for (;;) {
    const MutableByteSpan piece = next_piece(sending_, 0);
    if (piece.empty() || !may_send(piece.size())) return {};
    BF_TRY(channels_.send(next, piece));
    sending_.at += piece.size();
    sent_ += piece.size();
  }
}

Status Ring::receive(MutableByteSpan due) {
  const auto count = static_cast<int>(parts_.size());
  const int previous = (options_.rank + count - 1) % count;
  if (receiving_.step >= options_.reduce_steps) return channels_.receive_into(previous, due);
  BF_ASSIGN_OR_RETURN(const Message message, channels_.receive(previous, options_.scratch.first(due.size())));
  (*options_.reduce)(due, message.payload.bytes);
  return {};
}

}  // namespace butterfly
