#include "butterfly/wire/channel/address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "butterfly/base/descriptor.h"
#include "butterfly/wire/channel/socket.h"

namespace butterfly {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

addrinfo stream_hints(int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  return hints;
}

/// One question to the resolver. It belongs to the asking and the answering thread, whichever needs it longer.
struct Lookup {
  Lookup(std::string host_name, std::string port_number) : host(std::move(host_name)), port(std::move(port_number)) {}

  const std::string host, port;
  std::mutex mutex;
  std::condition_variable_any changed;
  bool done = false;
  int code = 0;
  AddressList answer;
};

void run_lookup(const std::shared_ptr<Lookup>& lookup) {
  const addrinfo hints = stream_hints(0);
  addrinfo* list = nullptr;
  const int code = getaddrinfo(lookup->host.c_str(), lookup->port.c_str(), &hints, &list);
  std::lock_guard lock(lookup->mutex);
  lookup->code = code;
  if (code == 0) lookup->answer.reset(list);
  lookup->done = true;
  lookup->changed.notify_all();
}

/// getaddrinfo() knows no deadline, so it runs on a thread that is left behind when it takes too long or is not wanted
/// any more; the resolver's own time limit ends it.
Result<AddressList> look_up(const std::string& host, const std::string& port, Deadline deadline,
                            const std::stop_token& stop) {
  const auto lookup = std::make_shared<Lookup>(host, port);
  std::thread thread;
  try {
    thread = std::thread(run_lookup, lookup);
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kIo, "cannot start a thread to look up {}: {}", host, error.what());
  }
  std::unique_lock lock(lookup->mutex);
  if (!lookup->changed.wait_until(lock, stop, deadline, [&] { return lookup->done; })) {
    thread.detach();
    if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "looking up {} was given up", host);
    return make_error(ErrorCode::kTimeout, "no address for {} before the deadline", host);
  }
  lock.unlock();
  thread.join();
  if (lookup->code != 0) {
    return make_error(ErrorCode::kNotFound, "no host is called {}: {}", host, gai_strerror(lookup->code));
  }
  return std::move(lookup->answer);
}

}  // namespace

Result<HostPort> parse_address(const std::string& address) {
  const auto fail = [&] {
    return make_error(ErrorCode::kInvalidArgument, "'{}' is no address, expected HOST:PORT or [IPv6]:PORT", address);
  };
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.size() > 300) return fail();
  HostPort result{.host = address.substr(0, colon), .port = 0};
  const std::string_view port = std::string_view(address).substr(colon + 1);
  const auto [end, code] = std::from_chars(port.begin(), port.end(), result.port);
  if (code != std::errc() || end != port.end()) return fail();
  if (result.host.starts_with('[') && result.host.ends_with(']')) {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return fail();
  }
  if (result.host.empty() || result.host.find('\0') != std::string::npos) return fail();
  return result;
}

std::string to_string(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), ntohs(v6.sin6_port));
}

std::optional<std::string> canonical_address(const std::string& address) {
  const auto parsed = parse_address(address);
  if (!parsed) return std::nullopt;
  in_addr v4{};
  in6_addr v6{};
  SocketAddress read;
  if (inet_pton(AF_INET6, parsed->host.c_str(), &v6) == 1) {
    if (!IN6_IS_ADDR_V4MAPPED(&v6)) {
      auto& in = reinterpret_cast<sockaddr_in6&>(read.storage);
      in.sin6_family = AF_INET6;
      in.sin6_port = htons(parsed->port);
      in.sin6_addr = v6;
      return to_string(read);
    }
    std::memcpy(&v4, v6.s6_addr + sizeof(v6) - sizeof(v4), sizeof(v4));
  } else if (inet_pton(AF_INET, parsed->host.c_str(), &v4) != 1) {
    return std::nullopt;
  }
  auto& in = reinterpret_cast<sockaddr_in&>(read.storage);
  in.sin_family = AF_INET;
  in.sin_port = htons(parsed->port);
  in.sin_addr = v4;
  return to_string(read);
}

bool is_loopback(const SocketAddress& address) {
  constexpr std::uint32_t kLoopbackNet = 127;
  if (address.storage.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == kLoopbackNet);
}

Result<std::vector<SocketAddress>> resolve(const std::string& address, Deadline deadline, const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(const HostPort parsed, parse_address(address));
  const std::string port = std::to_string(parsed.port);
  const addrinfo hints = stream_hints(AI_NUMERICHOST);
  addrinfo* raw = nullptr;
  AddressList list;
  if (getaddrinfo(parsed.host.c_str(), port.c_str(), &hints, &raw) == 0) {
    list.reset(raw);
  } else {
    BF_ASSIGN_OR_RETURN(list, look_up(parsed.host, port, deadline, stop));
  }
  std::vector<SocketAddress> result;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if ((entry->ai_family != AF_INET && entry->ai_family != AF_INET6) || entry->ai_addrlen > sizeof(sockaddr_storage)) {
      continue;
    }
    SocketAddress one;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    one.length = entry->ai_addrlen;
    result.push_back(one);
  }
  if (result.empty()) return make_error(ErrorCode::kNotFound, "{} has no IPv4 or IPv6 address", parsed.host);
  return result;
}

Result<std::string> own_address_towards(const std::string& address, Deadline deadline) {
  BF_ASSIGN_OR_RETURN(const std::vector<SocketAddress> targets, resolve(address, deadline));
  int failed = 0;
  for (const SocketAddress& target : targets) {
    const Descriptor fd(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SocketAddress own{.length = sizeof(sockaddr_storage)};
    if (!fd.valid() || ::connect(fd.get(), target.get(), target.length) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) {
      failed = errno;
      continue;
    }
    const std::string text = to_string(own);
    return text.substr(0, text.rfind(':')) + ":0";
  }
  return make_error(ErrorCode::kUnavailable, "there is no way to {}: {}", address, system_message(failed));
}

}  // namespace butterfly
