#include "butterfly/wire/collective/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/wire/collective/collectives_mesh_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Listeners of all members, and what connect_mesh() needs.
class Meeting {
 public:
  explicit Meeting(std::size_t members, const NodeAccess& access = {}) {
    options_.session = make_session_id();
    options_.epoch = Epoch(7);
    options_.access = access;
    for (std::size_t i = 0; i < members; ++i) {
      listeners_.push_back(Listener::create({.access = access}).value());
      options_.addresses.push_back(listeners_.back()->address());
    }
  }
  MeshOptions options(std::size_t rank) const {
    MeshOptions options = options_;
    options.rank = static_cast<int>(rank);
    return options;
  }
  auto connect(std::size_t rank, std::int64_t timeout_ms = 10'000) const {
    return connect_mesh(*listeners_[rank], options(rank), after_ms(timeout_ms));
  }
  Listener& listener(std::size_t rank) const { return *listeners_[rank]; }

 private:
  std::vector<std::unique_ptr<Listener>> listeners_;
  MeshOptions options_;
};

void expect_a_sum(const Meeting& meeting, std::size_t members) {
  ExchangeMesh::run_threads(members, [&](std::size_t me) {
    auto mesh = meeting.connect(me);
    ASSERT_TRUE(mesh) << mesh.error().message;
    EXPECT_EQ((*mesh)[me], nullptr);
    const auto end = make_collectives(static_cast<int>(me), std::move(*mesh), {.epoch = Epoch(7)});
    std::vector<float> values = brought_by(static_cast<int>(me), 5003);
    const Status status = end->all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kDirect);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_FALSE(wrong_sum(values, static_cast<int>(members)));
  });
}

TEST(Mesh, ConnectsEveryPairPlainOrWithCredentials) {
  for (const std::size_t members : {1u, 2u, 5u, 10u}) expect_a_sum(Meeting(members), members);
  const TestCluster cluster;
  expect_a_sum(Meeting(3, cluster.join("worker-a")), 3);
}

TEST(Mesh, RankZeroNeedsNoAddressWhereItDialsAll) {
  const Meeting meeting(4);
  ExchangeMesh::run_threads(4, [&](std::size_t me) {
    MeshOptions options = meeting.options(me);
    options.dialling = MeshDialling::kHigherRanks;
    options.addresses.front().clear();
    auto mesh = connect_mesh(meeting.listener(me), options, after_ms(10'000));
    ASSERT_TRUE(mesh) << mesh.error().message;
    const auto end = make_collectives(static_cast<int>(me), std::move(*mesh), {.epoch = Epoch(7)});
    std::vector<float> values = brought_by(static_cast<int>(me), 5003);
    ASSERT_TRUE(end->all_reduce(bytes_of(values), sizeof(float), add_floats, AllReduceAlgorithm::kDirect));
    EXPECT_FALSE(wrong_sum(values, 4));
  });
}

TEST(Mesh, MembersOfAnotherMeshOrEpochAreTurnedAway) {
  const Meeting meeting(2);
  ConnectOptions stranger;
  stranger.introduction = {.role = ConnectionRole::kData, .session = make_session_id(), .label = "rank1@7"};
  ConnectOptions stale;
  stale.introduction = {.role = ConnectionRole::kData, .session = meeting.options(0).session, .label = "rank1@6"};
  std::array<Result<ChannelPtr>, 2> others{make_error(ErrorCode::kIo, ""), make_error(ErrorCode::kIo, "")};
  ExchangeMesh::run_threads(2, [&](std::size_t me) {
    if (me == 1) {
      others[0] = connect_tcp(meeting.listener(0).address(), stranger, after_ms(5000));
      others[1] = connect_tcp(meeting.listener(0).address(), stale, after_ms(5000));
    }
    auto mesh = meeting.connect(me);
    ASSERT_TRUE(mesh) << mesh.error().message;
    const auto end = make_collectives(static_cast<int>(me), std::move(*mesh), {});
    EXPECT_TRUE(end->barrier());
  });
  for (auto& other : others) {
    ASSERT_TRUE(other);
    EXPECT_FALSE((*other)->receive({}, after_ms(5000)));
    EXPECT_TRUE((*other)->broken());
  }
}

TEST(Mesh, AMemberThatListensLaterIsDialledAgain) {
  MeshOptions options{.rank = 1, .session = make_session_id()};
  {
    const auto gone = Listener::create({}).value();
    options.addresses = {gone->address(), ""};
  }
  const auto mine = Listener::create({}).value();
  // Both are kept until both are there: a member that hangs up before the other looked has given its attempt up.
  Result<std::vector<std::shared_ptr<Channel>>> theirs;
  std::thread late([&, options]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const auto listener = Listener::create({.address = options.addresses[0]}).value();
    options.rank = 0;
    theirs = connect_mesh(*listener, options, after_ms(10'000));
  });
  const auto ours = connect_mesh(*mine, options, after_ms(10'000));
  late.join();
  EXPECT_TRUE(ours) << ours.error().message;
  EXPECT_TRUE(theirs) << theirs.error().message;
}

TEST(Mesh, AMemberThatWasConnectedAndIsGoneIsNotWaitedForButAnAttemptThatItGaveUpIs) {
  for (const bool connected : {true, false}) {
    const Meeting meeting(2);
    std::atomic<bool> gone = false;
    std::thread other([&] {
      if (connected) {
        EXPECT_TRUE(meeting.connect(1));
      } else {
        ConnectOptions attempt;
        attempt.introduction = {
            .role = ConnectionRole::kData, .session = meeting.options(0).session, .label = "rank1@7"};
        EXPECT_TRUE(connect_tcp(meeting.listener(0).address(), attempt, after_ms(5000)));
      }
      gone = true;
    });
    MeshOptions options = meeting.options(0);
    int asked_since = 0;
    options.still_wanted = [&]() -> Status {
      if (gone && ++asked_since == 5) return make_error(ErrorCode::kCancelled, "waits for another attempt");
      return {};
    };
    const auto mesh = connect_mesh(meeting.listener(0), options, after_ms(10'000));
    other.join();
    if (connected) {
      ASSERT_TRUE(mesh) << mesh.error().message;
      EXPECT_FALSE((*mesh)[1]->receive({}, after_ms(5000)));
    } else {
      ASSERT_FALSE(mesh);
      EXPECT_EQ(mesh.error().code, ErrorCode::kCancelled) << mesh.error().message;
    }
  }
}

TEST(Mesh, WhoDoesNotComeIsNamedAtTheDeadline) {
  const Meeting meeting(4);
  std::array<std::optional<Error>, 2> seen;
  ExchangeMesh::run_threads(2, [&](std::size_t me) {
    const auto mesh = meeting.connect(me, 300);
    ASSERT_FALSE(mesh);
    seen[me] = mesh.error();
  });
  EXPECT_EQ(seen[0]->code, ErrorCode::kTimeout);
  EXPECT_THAT(seen[0]->message, AllOf(HasSubstr("rank 0"), HasSubstr("ranks 2, 3")));
  const auto alone = meeting.connect(3, 100);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message, HasSubstr("rank 0"));
}

TEST(Mesh, IsGivenUpWhileNobodyAnswers) {
  // Rank 1 dials rank 0, who listens and does not answer; rank 0 waits for rank 1, who does not come.
  const Meeting meeting(2);
  for (const std::size_t me : {1U, 0U}) {
    int asked = 0;
    MeshOptions options = meeting.options(me);
    options.still_wanted = [&]() -> Status {
      if (++asked < 2) return {};
      return make_error(ErrorCode::kCancelled, "another mesh is wanted");
    };
    const auto mesh = connect_mesh(meeting.listener(me), options, after_ms(20'000));
    ASSERT_FALSE(mesh);
    EXPECT_EQ(mesh.error().code, ErrorCode::kCancelled) << mesh.error().message;
  }
}

TEST(Mesh, ARankBeyondTheAddressesIsRefused) {
  const auto listener = Listener::create({}).value();
  for (const int rank : {-1, 2}) {
    const auto mesh = connect_mesh(*listener, {.rank = rank, .addresses = {"a:1", "b:2"}}, after_ms(100));
    ASSERT_FALSE(mesh);
    EXPECT_EQ(mesh.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace butterfly
