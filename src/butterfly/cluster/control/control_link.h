// Control messages over a channel, and the values of this project in protobuf's clothes. send() may be called from
// several threads, receive() from one, close() from any.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/cluster/control/assignment.h"
#include "butterfly/cluster/control/control_messages.h"
#include "butterfly/machine/node.h"
#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

/// For messages that have no payload: an error before any of it is read.
Result<Payload> refuse_payload(std::uint64_t bytes);

class ControlLink {
 public:
  explicit ControlLink(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Errors: kUnavailable; kTimeout when the peer has not read for seconds; kInvalidArgument (too large).
  Status send(const control::ControlMessage& message);

  /// Errors: those of the channel; kProtocol for what is no control message.
  Result<control::ControlMessage> receive(Deadline deadline);

  void close() {
    closed_ = true;
    channel_->close();
  }
  /// Not closed from this side.
  bool usable() const { return !closed_; }
  std::string peer() const { return channel_->peer(); }

 private:
  const std::shared_ptr<Channel> channel_;  // shared where another thread may have to close it
  std::mutex sending_;                      // a channel has one sender at a time
  std::atomic<bool> closed_{false};
};

/// Channels between nodes, by what flows through them: weights for all stages of a worker, steps for one.
inline constexpr const char* kWeightsLabel = "weights";
inline constexpr const char* kHolderLabel = "holder";  // weights, too, from one worker to another
std::string input_label(Rank stage);                   // "input.0"

/// Channels of a training run: the one on which rank 0 leads a rank, and those between ranks (wire/mesh.h), which
/// begin so.
inline constexpr const char* kTrainLabel = "train";
inline constexpr const char* kRankLabelStart = "rank";
std::string output_label(Rank stage);  // "output.0"

/// "member2.0": the connection that member 2 of the stage's tensor group opened to one with higher slices.
std::string member_label(Rank stage, int member);

/// "input.0@7": a data connection of epoch 7.
std::string data_label(const std::string& what, Epoch epoch);

struct DataLabel {
  std::string what{};
  Epoch epoch{};
};
/// Nothing where it is not one.
std::optional<DataLabel> parse_data_label(const std::string& label);

void store(const Error& error, control::Failure& failure, Epoch epoch = {});

/// The error that `peer` reported, in front of its message its name.
Error read_failure(const control::Failure& failure, const std::string& peer);

void store(const NodeDescriptor& node, control::Node& message);
/// Errors: kProtocol for numbers that no node can have.
Result<NodeDescriptor> read_node(const control::Node& message);

void store(const StageAssignment& stage, control::Stage& message);
StageAssignment read_stage(const control::Stage& message);

void store(const ExchangeTimes& times, control::ReadyShare& message);
/// kNone where the number says nothing here.
ExchangeEngine read_exchange(const control::ReadyShare& message);
/// Nothing measured where no clock can show such numbers.
ExchangeTimes read_exchange_times(const control::ReadyShare& message);

/// What one worker has in one epoch; at least one.
void store(std::span<const Assignment> assignments, control::Assign& message);
/// Errors: kProtocol for layers, slices, ranks or members that contradict each other, and for settings that no stage
/// has; those of read_model_config().
Result<std::vector<Assignment>> read_assignments(const control::Assign& message);

}  // namespace butterfly
