// Status clients: what they may ask, and that none of them outstays its time.
#include "butterfly/cluster/worker/status_server.h"
#include "butterfly/cluster/control/control.pb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/membership/fake_stage_test.h"
#include "butterfly/wire/channel/socket.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

Result<ChannelPtr> visit(const std::string& address, ConnectionRole role) {
  ConnectOptions options;
  options.introduction = {.role = role, .session = make_session_id(), .label = "visit"};
  return connect_tcp(address, options, after_ms(kLongMs));
}

// Fails when the channel, and what of a message it holds, stays until another client comes.
TEST(StatusServer, ASilentVisitorIsGoneAtItsDeadlineAndNotWhenTheNextComes) {
  const ThreadWorker worker;
  for (const ConnectionRole role : {ConnectionRole::kStatus, ConnectionRole::kProbe}) {
    const auto channel = visit(worker.address(), role).value();
    EXPECT_EQ(channel->receive({}, after_ms(kLongMs)).error().code, ErrorCode::kUnavailable) << static_cast<int>(role);
  }
}

TEST(StatusServer, ACoordinatorMeasuresNoLinksForOthers) {
  const ThreadWorker worker;
  const auto membership =
      Membership::create({.workers = {worker.address()}, .join_at = "127.0.0.1:0"}, after_ms(kLongMs)).value();
  const auto refused = ask_links(membership->join_address(), {.to = {worker.address()}}, {}, after_ms(kLongMs));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("no worker"));
}

/// Takes connections and says nothing: each attempt to measure it lasts as long as it may.
class Tarpit {
 public:
  Tarpit()
      : socket_(listen_on(resolve("127.0.0.1:0", after_ms(1000)).value().front(), "the tarpit").value()),
        address_(to_string(bound_address(socket_).value())) {}
  const std::string& address() const { return address_; }

 private:
  Descriptor socket_;
  std::string address_;
};

// Fails when a node that shall end measures first all that it was asked for: 250 addresses take 20 minutes here.
TEST(StatusServer, MeasuringLinksDoesNotOutlastTheNode) {
  const Tarpit tarpit;
  auto worker = std::make_unique<ThreadWorker>();
  ControlLink link{std::shared_ptr<Channel>(visit(worker->address(), ConnectionRole::kStatus).value())};
  control::ControlMessage question;
  for (int i = 0; i < 250; ++i) question.mutable_measure_links()->add_addresses(tarpit.address());
  ASSERT_TRUE(link.send(question));
  EXPECT_EQ(link.receive(after_ms(200)).error().code, ErrorCode::kTimeout) << "it is measuring";
  worker.reset();
  EXPECT_FALSE(link.receive(after_ms(kLongMs)));
}

TEST(StatusServer, AQuestionAboutLinksCanBeGivenUpByTheClientThatAsks) {
  const Tarpit tarpit;
  const ThreadWorker worker;
  std::stop_source stop;
  const std::jthread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  const LinkQuestion question{.to = {tarpit.address(), tarpit.address()}, .stop = stop.get_token()};
  EXPECT_FALSE(ask_links(worker.address(), question, {}, after_ms(10 * kLongMs)));
}

}  // namespace
}  // namespace butterfly
