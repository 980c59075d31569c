#include "butterfly/wire/collective/mesh.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <thread>

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

constexpr std::chrono::milliseconds kDialPause{20};  // before a member that does not listen yet is dialled again
constexpr std::int64_t kLookEveryMs = 50;            // whether the mesh is still wanted
// A member that has given the mesh up listens, but does not answer: an attempt ends, the next may take twice as long.
constexpr std::chrono::milliseconds kFirstAttempt{250};

/// Sent by the dialling member: it counts on this connection. An attempt that it has given up ends without it.
constexpr std::uint16_t kCountedMessage = 6;

/// "rank3@7".
std::string rank_label(int rank, Epoch epoch) {
  return fmt::format("rank{}@{}", rank, epoch.value);
}

Result<std::shared_ptr<Channel>> dial_member(int member, const MeshOptions& options, Deadline deadline) {
  const std::string& address = options.addresses[static_cast<std::size_t>(member)];
  ConnectOptions connecting{.access = options.access, .channel = options.channel};
  connecting.introduction = {.role = ConnectionRole::kData, .session = options.session};
  connecting.introduction.label = rank_label(options.rank, options.epoch);
  connecting.peer_name = fmt::format("rank {} at {}", member, address);
  for (auto attempt = kFirstAttempt;;) {
    const Deadline attempt_ends = std::min(deadline, std::chrono::steady_clock::now() + attempt);
    auto channel = connect_tcp(address, connecting, attempt_ends);
    const Status counted = channel ? (*channel)->send({.type = kCountedMessage, .epoch = options.epoch}, attempt_ends)
                                   : tl::unexpected(channel.error());
    if (counted) return std::shared_ptr<Channel>(std::move(*channel));
    const ErrorCode code = counted.error().code;
    const bool may_come = code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout;
    if (!may_come || std::chrono::steady_clock::now() + kDialPause >= deadline) return tl::unexpected(counted.error());
    BF_TRY(options.still_wanted());
    if (code == ErrorCode::kTimeout) attempt *= 2;
    std::this_thread::sleep_for(kDialPause);
  }
}

/// Whether the member at the other end counts on this connection, however it fared since: one that went away right
/// after it was connected must not be waited for, since no other member may notice. False: it has given the attempt
/// up, to try again.
Result<bool> counted_on(Channel& channel, const MeshOptions& options, Deadline deadline) {
  const auto no_payload = [&](std::uint64_t) -> Result<Payload> {
    return make_error(ErrorCode::kProtocol, "{} sent a payload before it was connected", channel.peer());
  };
  for (;;) {
    auto message = channel.receive(no_payload, std::min(deadline, after_ms(kLookEveryMs)));
    if (message && message->type == kCountedMessage && message->epoch == options.epoch) return true;
    if (message) {
      return make_error(ErrorCode::kProtocol, "{} sent a message of type {} before it was connected", channel.peer(),
                        message->type);
    }
    if (message.error().code == ErrorCode::kUnavailable) return false;
    const bool late = std::chrono::steady_clock::now() >= deadline;
    if (message.error().code != ErrorCode::kTimeout || late) return tl::unexpected(std::move(message).error());
    BF_TRY(options.still_wanted());
  }
}

struct Others {
  std::vector<std::size_t> dialled, accepted;
};

/// The dialled ones from the end of the ranks that dials nobody: it accepts at once, so the next one is done soon and
/// accepts, and so on; nobody waits in a circle.
Others others(const MeshOptions& options) {
  std::vector<std::size_t> lower(static_cast<std::size_t>(options.rank));
  std::iota(lower.begin(), lower.end(), std::size_t{0});
  std::vector<std::size_t> higher(options.addresses.size() - lower.size() - 1);
  std::iota(higher.begin(), higher.end(), lower.size() + 1);
  if (options.dialling == MeshDialling::kLowerRanks)
    return {.dialled = std::move(lower), .accepted = std::move(higher)};
  std::ranges::reverse(higher);
  return {.dialled = std::move(higher), .accepted = std::move(lower)};
}

/// Which member a client is; nothing where it does not belong here.
std::optional<std::size_t> find_member(const Introduction& introduction, const MeshOptions& options) {
  if (introduction.role != ConnectionRole::kData || introduction.session != options.session) return std::nullopt;
  for (const std::size_t member : others(options).accepted) {
    if (introduction.label == rank_label(static_cast<int>(member), options.epoch)) return member;
  }
  return std::nullopt;
}

std::string missing_members(const std::vector<std::size_t>& accepted,
                            const std::vector<std::shared_ptr<Channel>>& members) {
  std::string names;
  for (const std::size_t member : accepted) {
    if (!members[member]) names += fmt::format("{}{}", names.empty() ? "" : ", ", member);
  }
  return names;
}

}  // namespace

Result<std::vector<std::shared_ptr<Channel>>> connect_mesh(Listener& listener, const MeshOptions& options,
                                                           Deadline deadline) {
  const auto count = options.addresses.size();
  if (options.rank < 0 || static_cast<std::size_t>(options.rank) >= count) {
    return make_error(ErrorCode::kInvalidArgument, "rank {} of a mesh of {} addresses", options.rank, count);
  }
  std::vector<std::shared_ptr<Channel>> members(count);
  const Others expected = others(options);
  for (const std::size_t member : expected.dialled) {
    BF_ASSIGN_OR_RETURN(members[member], dial_member(static_cast<int>(member), options, deadline));
  }
  for (auto missing = expected.accepted.size(); missing > 0;) {
    BF_TRY(options.still_wanted());
    auto arrival = listener.accept(std::min(deadline, after_ms(kLookEveryMs)));
    const bool late = std::chrono::steady_clock::now() >= deadline;
    if (!arrival && arrival.error().code == ErrorCode::kTimeout && !late) continue;
    if (!arrival) {
      return make_error(arrival.error().code, "rank {} waits for ranks {}: {}", options.rank,
                        missing_members(expected.accepted, members), arrival.error().message);
    }
    const auto member = find_member(arrival->introduction, options);
    if (!member) {
      log().info("rank {} turned a connection away that does not belong to its mesh", options.rank);
      continue;
    }
    BF_ASSIGN_OR_RETURN(const bool counted, counted_on(*arrival->channel, options, deadline));
    if (!counted) continue;
    if (!members[*member]) --missing;
    members[*member] = std::move(arrival->channel);
  }
  return members;
}

}  // namespace butterfly
