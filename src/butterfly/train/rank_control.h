// What rank 0 and the other processes of a run tell each other beside the gradients, over one connection each.
// Threads as for Channel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/wire/channel.h"

namespace butterfly {

/// A process of the run; `number` stays its own over all epochs, its rank is its place among those who remain.
struct RankProcess {
  int number = 0;
  std::string address{};  // of its listener
};

/// Every process answers kAbandon of its epoch with kLost, unless it has said so before: one kLost ends each epoch.
enum class RankMessage : std::uint16_t {
  kHello = 1,    // to rank 0: this process's listener
  kEpoch = 2,    // from rank 0: take part in an epoch of these members
  kAbandon = 3,  // from rank 0: the epoch has ended
  kLost = 4,     // to rank 0: out of the epoch, and why
  kFailed = 5,   // to rank 0: an error that another epoch would not mend; the process ends
  kEnd = 6,      // from rank 0: the run is over
};

struct RankNews {
  RankMessage kind = RankMessage::kEnd;
  Epoch epoch{};
  std::string text{};
  ErrorCode code = ErrorCode::kUnavailable;  // of kLost and kFailed
};

class RankControl {
 public:
  RankControl() = default;
  explicit RankControl(ChannelPtr channel) : channel_(std::move(channel)) {}

  Status send(const RankNews& news);
  /// Errors: those of the channel; kProtocol for what no process of a run says.
  Result<RankNews> receive(Deadline deadline);
  bool broken() const { return channel_->broken(); }
  void close() { channel_->close(); }

 private:
  ChannelPtr channel_;
};

/// Members of an epoch as the text of kEpoch, and back. Errors: kProtocol.
std::string members_text(const std::vector<RankProcess>& members);
Result<std::vector<RankProcess>> parse_members(const std::string& text);

}  // namespace butterfly
