// While this process is recorded (BUTTERFLY_RECORD), so are the workers it works with: each from when it is first seen;
// their recordings are written beside ours when this ends. A worker that cannot be recorded, or is lost, is told of in
// the log. Owns a thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/cluster/control/remote_recording.h"
#include "butterfly/machine/node.h"

namespace butterfly {

class WorkerRecordings {
 public:
  /// `workers` says who works now; called from this object's thread too.
  WorkerRecordings(std::string folder, NodeAccess access, std::function<std::vector<NodeDescriptor>()> workers);
  /// Fetches and writes, within half a minute for each worker, all at once.
  ~WorkerRecordings();
  WorkerRecordings(const WorkerRecordings&) = delete;
  WorkerRecordings& operator=(const WorkerRecordings&) = delete;

 private:
  struct Recorded {
    std::string name{};
    std::unique_ptr<RemoteRecording> recording{};  // null: it cannot be recorded
    int times = 1;                                 // that this worker came
  };
  void look();
  void fetch(const std::string& address, Recorded& worker) const;

  const std::string folder_;
  const NodeAccess access_;
  const std::function<std::vector<NodeDescriptor>()> workers_;
  std::map<std::string, Recorded> recorded_;  // by address
  std::jthread thread_;
};

}  // namespace butterfly
