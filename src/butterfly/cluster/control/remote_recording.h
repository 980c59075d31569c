// What another process does, recorded at our wish: it begins, its clock is compared with ours now and then, and it is
// fetched (docs/formats/wire.md). Not thread-safe. A recording that is not fetched ends with its connection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/trace/recording.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

class ControlLink;

/// What is to be added to another steady clock to have ours.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::uint64_t error_ns = 0;  // the most by which that may be wrong
};

/// One offset for a span of time from those that were found in it: clocks of two machines differ in speed.
ClockOffset offset_over(const std::vector<ClockOffset>& found);

class RemoteRecording {
 public:
  /// Errors: those of connect_tcp(); kUnavailable where that process is recorded already.
  static Result<std::unique_ptr<RemoteRecording>> begin(const std::string& address, const NodeAccess& access,
                                                        Deadline deadline);
  ~RemoteRecording();

  /// The best of some round trips; at least every minute, or the other side gives up. Errors: those of the connection.
  Status compare_clocks(Deadline deadline);

  /// Ends and takes it; with our clock's offset. Errors: those of the connection, kProtocol, kBadData.
  Result<trace::Recording> fetch(Deadline deadline);

 private:
  explicit RemoteRecording(ChannelPtr channel);
  const std::unique_ptr<ControlLink> link_;
  std::vector<ClockOffset> offsets_;
};

}  // namespace butterfly
