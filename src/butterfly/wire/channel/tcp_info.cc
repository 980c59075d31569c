// A file of its own: the C library's tcp_info ends before the fields, the kernel's header does not go with the
// library's.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

#include "butterfly/wire/channel/socket.h"

namespace butterfly {

DeliveryRate delivery_rate(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  if (length < offsetof(tcp_info, tcpi_rwnd_limited) + sizeof(info.tcpi_rwnd_limited)) return {};
  // While the sender had nothing more to send, the rate says how little it sent.
  const bool known = info.tcpi_delivery_rate_app_limited == 0;
  return {.bytes_per_s = known ? static_cast<double>(info.tcpi_delivery_rate) : 0,
          .receiver_limited_us = info.tcpi_rwnd_limited};
}

Acknowledgements acknowledgements(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {.awaited = info.tcpi_unacked > 0,
          .bytes = info.tcpi_bytes_acked,
          .last_came = std::chrono::milliseconds(info.tcpi_last_ack_recv)};
}

}  // namespace butterfly
