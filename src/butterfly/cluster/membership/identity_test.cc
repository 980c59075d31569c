// One worker is one member, however many addresses it is announced with, and announcements of nobody keep nobody out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_label.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/membership/fake_stage_test.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::int64_t kQuietMs = 1500;  // more than an alias needs to be dialled, and to do harm

std::string port_of(const std::string& address) {
  return address.substr(address.rfind(':') + 1);
}

void announce(const Membership& membership, const std::string& address) {
  const Introduction said{.role = ConnectionRole::kJoin, .session = make_session_id(), .label = address};
  EXPECT_TRUE(connect_tcp(membership.join_address(), {.introduction = said}, after_ms(kLongMs)));
}

/// Nothing happens for a while.
testing::AssertionResult is_quiet(const Membership& membership) {
  const std::uint64_t version = membership.version();
  if (!membership.wait_for_change(version, after_ms(kQuietMs), {})) return testing::AssertionSuccess();
  return testing::AssertionFailure() << membership.last_change();
}

/// A worker that leaves is no member from its announcement on; its connection ends a moment later, which is a change
/// too.
bool is_disconnected(const Membership& membership) {
  const Deadline deadline = after_ms(kLongMs);
  for (;;) {
    const std::uint64_t version = membership.version();
    if (!membership.last_change().ends_with(" leaves")) return true;
    if (!membership.wait_for_change(version, deadline, {})) return false;
  }
}

std::unique_ptr<ControlLink> call(const std::string& worker, const SessionId& session,
                                  const std::optional<WorkerIdentity>& lost = {}) {
  const std::string label = encode_control_label({.coordinator = "test", .lost = lost});
  ConnectOptions options;
  options.introduction = {.role = ConnectionRole::kControl, .session = session, .label = label};
  return std::make_unique<ControlLink>(connect_tcp(worker, options, after_ms(kLongMs)).value());
}

TEST(WorkerIdentity, TwoAddressesOfOneWorkerAreRefusedByNamingThem) {
  const ThreadWorker worker;
  const std::string alias = "localhost:" + port_of(worker.address());
  const auto refused = Membership::create({.workers = {worker.address(), alias}}, after_ms(kLongMs));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr(alias));
  EXPECT_THAT(refused.error().message, HasSubstr(worker.address() + " "));
  EXPECT_THAT(refused.error().message, HasSubstr("one worker"));
  EXPECT_TRUE(has_members(*membership_of({alias}, "127.0.0.1:0"), 1)) << "it is as free as before";
}

// Fails when a connection by another address takes the place of the one that the member is served by.
TEST(WorkerIdentity, AliasesOfAMemberThatAreAnnouncedChangeNothing) {
  const ThreadWorker worker;
  const std::string port = port_of(worker.address());
  const auto membership = membership_of({"localhost:" + port}, "127.0.0.1:0");
  for (int i = 0; i < 20; ++i) {
    announce(*membership, "127.0.0.1:" + port);
    announce(*membership, "[::ffff:127.0.0.1]:" + port);
  }
  EXPECT_TRUE(is_quiet(*membership));
  EXPECT_EQ(membership->members().nodes.size(), 1u);
}

// Fails when the two addresses of a worker take it from each other for ever.
TEST(WorkerIdentity, AWorkerKnownByTwoAddressesComesBackOnce) {
  auto worker = std::make_unique<ThreadWorker>();
  const std::string address = worker->address();
  const auto membership = membership_of({"localhost:" + port_of(address)}, "127.0.0.1:0");
  const std::uint64_t before = membership->version();
  worker.reset();
  ASSERT_TRUE(has_members(*membership, 0));
  ASSERT_TRUE(is_disconnected(*membership));
  worker = std::make_unique<ThreadWorker>(
      WorkerOptions{.listen = address, .join = membership->join_address(), .drain_timeout = milliseconds(50)});
  ASSERT_TRUE(has_members(*membership, 1));
  EXPECT_TRUE(is_quiet(*membership));
  EXPECT_LE(membership->version() - before, 3u) << "it went, perhaps by way of leaving, and came";
}

TEST(WorkerIdentity, AConnectionIsGivenUpOnlyForACoordinatorThatHasLostIt) {
  const ThreadWorker worker;
  const SessionId session = make_session_id();
  const auto first = call(worker.address(), session);
  const auto hello = first->receive(after_ms(kLongMs)).value();
  const auto identity = read_worker_identity(hello.worker_hello().identity());
  ASSERT_TRUE(identity);

  for (const auto& lost : {std::optional<WorkerIdentity>(), std::optional(make_session_id())}) {
    const auto answer = call(worker.address(), session, lost)->receive(after_ms(kLongMs)).value();
    ASSERT_TRUE(answer.has_failure());
    EXPECT_EQ(read_worker_identity(answer.failure().serving()), identity);
  }
  control::ControlMessage ping;
  ping.mutable_ping()->set_sequence(7);
  ASSERT_TRUE(first->send(ping));
  EXPECT_EQ(first->receive(after_ms(kLongMs)).value().pong().sequence(), 7u) << "it serves on";

  const auto second = call(worker.address(), session, identity);
  EXPECT_EQ(first->receive(after_ms(kLongMs)).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(second->receive(after_ms(kLongMs)).value().has_worker_hello());
}

TEST(WorkerIdentity, AnotherCoordinatorIsNotToldWhoIsServed) {
  const ThreadWorker worker;
  const auto first = call(worker.address(), make_session_id());
  ASSERT_TRUE(first->receive(after_ms(kLongMs)));
  const auto answer = call(worker.address(), make_session_id())->receive(after_ms(kLongMs)).value();
  ASSERT_TRUE(answer.has_failure());
  EXPECT_TRUE(answer.failure().serving().empty());
  EXPECT_THAT(answer.failure().message(), HasSubstr("busy with coordinator"));
}

// Fails when a label makes the coordinator ask a resolver.
TEST(Announcements, NamesAreNotLookedUp) {
  const ThreadWorker worker;
  const auto membership = membership_of({}, "127.0.0.1:0");
  announce(*membership, "localhost:" + port_of(worker.address()));
  announce(*membership, "127.1:" + port_of(worker.address()));
  EXPECT_TRUE(is_quiet(*membership));
  announce(*membership, worker.address());
  EXPECT_TRUE(has_members(*membership, 1));
}

// Fails when addresses where nobody is take all the room that there is for dialling.
TEST(Announcements, OfNobodyDoNotKeepAWorkerThatWasLostFromComingBack) {
  auto worker = std::make_unique<ThreadWorker>();
  const std::string address = worker->address();
  const auto membership = membership_of({address}, "127.0.0.1:0");
  for (int i = 0; i < 300; ++i) announce(*membership, fmt::format("127.0.0.{}:{}", 2 + i % 200, 1 + i));
  worker.reset();
  ASSERT_TRUE(has_members(*membership, 0));
  worker = std::make_unique<ThreadWorker>(WorkerOptions{.listen = address, .drain_timeout = milliseconds(50)});
  EXPECT_TRUE(has_members(*membership, 1));
}

}  // namespace
}  // namespace butterfly
