// Names of TCP endpoints: "10.0.0.2:7000", "[::1]:7000", "worker-a:7000". Thread-safe: plain functions.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 0;
};

/// Errors: kInvalidArgument naming the form that is expected.
Result<HostPort> parse_address(const std::string& address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// "127.0.0.1:7000", "[::1]:7000".
std::string to_string(const SocketAddress& address);

/// An address of numbers in the one form that to_string() writes; IPv4 also where it is mapped into IPv6. Nothing for
/// names: no resolver is asked.
std::optional<std::string> canonical_address(const std::string& address);

/// 127.0.0.0/8, ::1 and the former mapped into IPv6.
bool is_loopback(const SocketAddress& address);

/// Numbers directly, names through the system's resolver; never empty.
/// Errors: kInvalidArgument (form), kNotFound (no such host), kTimeout, kCancelled (`stop`).
Result<std::vector<SocketAddress>> resolve(const std::string& address, Deadline deadline,
                                           const std::stop_token& stop = {});

/// The address of this machine with which it reaches `address`, and port 0: "10.0.0.2:0". Nothing is sent. Errors:
/// those of resolve(); kUnavailable where there is no way there.
Result<std::string> own_address_towards(const std::string& address, Deadline deadline);

}  // namespace butterfly
