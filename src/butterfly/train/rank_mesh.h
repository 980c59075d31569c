// A channel between every two ranks of an epoch, each a process with a listener: ranks dial those below them and answer
// those above. Plain values and one function, for one thread of each rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/wire/tcp.h"

namespace butterfly {

/// A process of the run; `number` stays its own over all epochs, its rank is its place among those who remain.
struct RankProcess {
  int number = 0;
  std::string address{};  // of its listener
};

struct MeshRequest {
  Listener* listener = nullptr;  // this process's
  SessionId session{};           // of the run: who does not know it is turned away
  Epoch epoch{};
  std::vector<RankProcess> members{};
  int rank = 0;  // this process's place among the members
  std::chrono::milliseconds timeout{60'000};
  /// Asked now and then; an error gives the mesh up.
  std::function<Status()> still_wanted = [] { return Status{}; };
};

/// A channel for each member, nothing for this one. Errors: kUnavailable, kTimeout (naming who did not come), kProtocol,
/// those of still_wanted().
Result<std::vector<std::shared_ptr<Channel>>> connect_mesh(const MeshRequest& request);

}  // namespace butterfly
