// The channel between processes: one TCP connection, frames written from and read into their final buffers.
// A Listener owns its port and is driven by the thread in accept(); it has none of its own. interrupt() and close() may
// come from any thread. A channel owns its socket and, once a send did not fit the socket's buffer, one sender thread.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "butterfly/wire/channel/frame.h"

namespace butterfly {

struct TcpOptions {
  ChannelLimits limits{};
  PackedPayloads packed = PackedPayloads::kAccepted;  // refused in any case on connections that carry no tensors
  std::chrono::microseconds spin{50};                 // looked again for that long before a receive blocks
  int queue_messages_max = 8;                         // waiting for the sender thread; send() waits while that many are
};

/// What a channel of this role takes.
TcpOptions for_role(TcpOptions options, ConnectionRole role);

/// Without authentication, nodes talk over loopback only, unless their user insists.
enum class AddressPolicy : std::uint8_t { kLoopbackOnly, kAnyAddress };

class Credentials;

/// Whom a node talks to and who may talk to it.
struct NodeAccess {
  AddressPolicy policy = AddressPolicy::kLoopbackOnly;  // without credentials
  std::shared_ptr<const Credentials> credentials{};     // shared by every connection of a process
};

struct ListenOptions {
  std::string address = "127.0.0.1:0";  // port 0: the system chooses
  NodeAccess access{};
  std::chrono::milliseconds handshake_timeout{5000};
  int handshakes_max = 64;  // unfinished at one time; the oldest gives way
  TcpOptions channel{};
};

/// A client that has introduced itself.
struct Arrival {
  ChannelPtr channel;
  Introduction introduction{};
  std::string node{};  // the name in its certificate; empty without credentials
};

class Listener {
 public:
  /// Errors: kInvalidArgument (form, policy), kNotFound (host, or one of another machine), kUnavailable (port in use),
  /// kIo.
  static Result<std::unique_ptr<Listener>> create(const ListenOptions& options);
  virtual ~Listener() = default;

  /// With the port that the system chose.
  virtual std::string address() const = 0;

  /// The next client whose handshake is complete. Clients that are silent, speak another version or none at all are
  /// turned away meanwhile and delay nobody. One thread at a time.
  /// Errors: kTimeout, kCancelled (interrupt() or close()), kIo.
  virtual Result<Arrival> accept(Deadline deadline) = 0;

  /// Makes the accept() that runs now, or else the next one, return kCancelled once.
  virtual void interrupt() = 0;

  /// Makes this and every later accept() return kCancelled.
  virtual void close() = 0;
};

struct ConnectOptions {
  Introduction introduction{};
  std::string peer_name{};  // for error messages; empty: the address
  NodeAccess access{};
  TcpOptions channel{};
  std::stop_token stop{};  // gives the attempt up
};

/// How often a handshake that was damaged on its way is begun, before the peer counts as unreachable.
inline constexpr int kHandshakesMax = 3;

/// Connects and introduces itself. What was damaged on its way is tried again, what was refused is not. Errors:
/// kInvalidArgument (form, policy), kNotFound, kUnavailable (refused, went away), kTimeout, kCancelled (`stop`),
/// kProtocol (another version, or something else listens there).
Result<ChannelPtr> connect_tcp(const std::string& address, const ConnectOptions& options, Deadline deadline);

}  // namespace butterfly
