// What rank 0 and the other processes of a run tell each other beside the gradients, over one connection each.
// Threads as for Channel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// A process of the run; `number` stays its own over all epochs, its rank is its place among those who remain.
struct RankProcess {
  int number = 0;
  std::string address{};  // of its listener
};

/// Every process answers kAbandon of its epoch with kLost, unless it has said so before: one kLost ends each epoch.
enum class RankMessageKind : std::uint16_t {
  kHello = 1,    // to rank 0: this process's listener
  kEpoch = 2,    // from rank 0: take part in an epoch of these members
  kAbandon = 3,  // from rank 0: the epoch has ended
  kLost = 4,     // to rank 0: out of the epoch, and why
  kFailed = 5,   // to rank 0: an error that another epoch would not mend; the process ends
  kEnd = 6,      // from rank 0: the run is over
  kTask = 7,     // from rank 0, to a worker: what the run is (rank_task.h)
  kWanted = 8,   // to rank 0: which of the run's token files are not here, their places with blanks between
  kReady = 9,    // to rank 0: all of them are here
};

struct RankMessage {
  RankMessageKind kind = RankMessageKind::kEnd;
  Epoch epoch{};
  std::string text{};
  ErrorCode code = ErrorCode::kUnavailable;  // of kLost and kFailed
};

class RankControl {
 public:
  RankControl() = default;
  explicit RankControl(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  Status send(const RankMessage& message);
  /// Errors: those of the channel; kProtocol for what no process of a run says, a payload among it.
  Result<RankMessage> receive(Deadline deadline);
  Channel& channel() const { return *channel_; }
  void close() const { channel_->close(); }

 private:
  std::shared_ptr<Channel> channel_;  // shared with the thread that closes it when its session ends
};

/// Members of an epoch as the text of kEpoch, and back. Errors: kProtocol.
std::string members_text(const std::vector<RankProcess>& members);
Result<std::vector<RankProcess>> parse_members(const std::string& text);

}  // namespace butterfly
