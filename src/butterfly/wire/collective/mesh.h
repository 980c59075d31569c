// Channels between all pairs of members over TCP, for collectives: of two members one dials and the other accepts, so
// the first to be there need not know when the others come. Called by all members at once, each with a listener of its
// own. With credentials everything is TLS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// Whom a member dials, the same for all: rank 0 needs no address where the others are higher.
enum class MeshDialling : std::uint8_t { kLowerRanks, kHigherRanks };

struct MeshOptions {
  int rank = 0;
  std::vector<std::string>
      addresses{};  // where each member listens, by rank; only those that are dialled are looked at
  MeshDialling dialling = MeshDialling::kLowerRanks;
  SessionId session{};  // the same for all members of one mesh, and for nobody else
  Epoch epoch{};        // the same for all
  NodeAccess access{};
  TcpOptions channel{};  // members that share a machine with fewer cores than members: .spin = 0
  /// Asked several times a second; an error gives the mesh up.
  std::function<Status()> still_wanted = [] { return Status{}; };
};

/// A channel for each member, nothing for `rank` itself; shared, since the thread that ends the epoch closes them. A
/// member that does not listen yet is dialled again until the deadline. Clients of another mesh or epoch are turned
/// away and delay nobody. Errors: those of connect_tcp() and Listener::accept(), naming the member or those that did
/// not come; kInvalidArgument (a rank beyond the addresses); those of still_wanted().
Result<std::vector<std::shared_ptr<Channel>>> connect_mesh(Listener& listener, const MeshOptions& options,
                                                           Deadline deadline);

}  // namespace butterfly
