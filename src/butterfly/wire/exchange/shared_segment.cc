#include "butterfly/wire/exchange/shared_segment.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "butterfly/base/hash/digest.h"
#include "butterfly/wire/channel/frame.h"

namespace butterfly {
namespace {

tl::unexpected<Error> failed(const char* what) {
  return make_error(ErrorCode::kIo, "{}: {}", what, system_message(errno));
}

/// An abstract name: known to the kernel only, gone with its socket.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof(address.sun_path) - 1));
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool of_this_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

/// One byte with a descriptor beside it, as sendmsg and recvmsg want it.
struct DescriptorMessage {
  char byte = 0;
  iovec piece{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  DescriptorMessage() {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

Status wait_readable(const Descriptor& socket, Deadline deadline, const char* what) {
  pollfd wait{.fd = socket.get(), .events = POLLIN, .revents = 0};
  BF_ASSIGN_OR_RETURN(const int ready, poll_until(std::span(&wait, 1), deadline));
  if (ready == 0) return make_error(ErrorCode::kTimeout, "{} before the deadline", what);
  return {};
}

}  // namespace

std::string sharing_scope() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat network {};
  if (!std::getline(file, boot) || ::stat("/proc/self/ns/net", &network) != 0) return {};
  return fmt::format("{}/{}/{}", boot, network.st_ino, ::geteuid());
}

Result<SegmentOffer> SegmentOffer::create() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failed("cannot open a local socket");
  std::string name = "butterfly-" + to_hex(make_session_id());
  const auto [address, length] = abstract_address(name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), 64) != 0) {
    return failed("cannot listen on a local socket");
  }
  return SegmentOffer(std::move(socket), std::move(name));
}

Status SegmentOffer::hand_out(int descriptor, int count, Deadline deadline) const {
  while (count > 0) {
    BF_TRY(wait_readable(socket_, deadline, "not every process asked for its shared memory"));
    const Descriptor peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer.valid() || !of_this_user(peer)) continue;
    DescriptorMessage message;
    cmsghdr* control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof(descriptor));
    if (::sendmsg(peer.get(), &message.header, MSG_NOSIGNAL) != 1) return failed("cannot pass shared memory on");
    --count;
  }
  return {};
}

Result<SegmentRequest> SegmentRequest::connect(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failed("cannot open a local socket");
  const auto [address, length] = abstract_address(name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 || !of_this_user(socket)) {
    return make_error(ErrorCode::kUnavailable, "nobody offers shared memory here: {}", system_message(errno));
  }
  return SegmentRequest(std::move(socket));
}

Result<SharedMemory> SegmentRequest::take(std::size_t bytes, Deadline deadline) const {
  BF_TRY(wait_readable(socket_, deadline, "no shared memory came"));
  DescriptorMessage message;
  if (::recvmsg(socket_.get(), &message.header, MSG_CMSG_CLOEXEC) != 1) {
    return make_error(ErrorCode::kUnavailable, "the offer of shared memory was withdrawn");
  }
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS || control->cmsg_len != CMSG_LEN(sizeof(int))) {
    return make_error(ErrorCode::kProtocol, "a message came without the shared memory that it is about");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(control), sizeof(descriptor));
  return SharedMemory::adopt(descriptor, bytes);
}

}  // namespace butterfly
