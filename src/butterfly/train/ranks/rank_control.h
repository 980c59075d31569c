// What rank 0 and the other processes of a run tell each other beside the gradients, over one connection each.
// Threads as for Channel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/train/ranks/rank_task.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// A process of the run; `number` stays its own over all epochs, its rank is its place among those who remain.
struct RankProcess {
  int number = 0;
  std::string address{};  // of its listener
};

/// Every process answers kAbandon of its epoch with kLost, unless it has said so before: one kLost ends each epoch.
enum class RankMessageKind : std::uint8_t {
  kHello,    // to rank 0: this process's listener
  kEpoch,    // from rank 0: take part in an epoch of these members
  kAbandon,  // from rank 0: the epoch has ended
  kLost,     // to rank 0: out of the epoch, and why
  kFailed,   // to rank 0: an error that another epoch would not mend; the process ends
  kEnd,      // from rank 0: the run is over
  kTask,     // from rank 0, to a worker: what the run is
  kWanted,   // to rank 0: which of the run's token files are not here
  kReady,    // to rank 0: all of them are here
};

struct RankMessage {
  RankMessageKind kind = RankMessageKind::kEnd;
  Epoch epoch{};
  std::vector<RankProcess> members{};        // of kHello: the one that says it; of kEpoch: all, rank 0 first
  std::vector<std::size_t> wanted{};         // of kWanted: places in the task's list of token files
  std::optional<RankTask> task{};            // of kTask
  std::string text{};                        // of kLost and kFailed: why
  ErrorCode code = ErrorCode::kUnavailable;  // of the same
};

/// What rank 0 or a rank said. Errors: kProtocol for bytes that are no message of theirs; those of read_rank_task().
Result<RankMessage> parse_rank_message(ByteSpan bytes);

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

}  // namespace butterfly
