#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/cluster/membership/cluster_nodes_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ClusterTest : public NodesTest {};

TEST_P(ClusterTest, DataPassesEveryStageInOrder) {
  for (int count = 1; count <= 4; ++count) {
    Nodes nodes = make(count);
    auto ends = nodes.session->start(fake_request(count), after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    const Status pumped = pump(*ends, count, 50);
    EXPECT_TRUE(pumped) << count << " stages: " << pumped.error().message;
    EXPECT_FALSE(nodes.session->failed());
    nodes.session->stop();
    for (int i = 0; i < count; ++i) {
      FakeStage& stage = nodes.stage(static_cast<std::size_t>(i));
      EXPECT_EQ(stage.unloads, 1);
      EXPECT_EQ(stage.assignment.rank, Rank(i));
      EXPECT_EQ(stage.assignment.stages, count);
      EXPECT_EQ(stage.assignment.stage, fake_plan(count).shares[static_cast<std::size_t>(i)].work);
      EXPECT_EQ(stage.assignment.model.hash, std::string(64, '0'));
      EXPECT_EQ(stage.assignment.config.name, "butterfly-demo");
      EXPECT_EQ(stage.assignment.settings.kv_type, DType::kF32);
      EXPECT_EQ(stage.assignment.settings.wire_type, DType::kQ8_0);
      EXPECT_EQ(stage.assignment.settings.compression, Compression::kLz4);
    }
  }
}

TEST_P(ClusterTest, ManyMessagesAreUnderWayAtOnce) {
  Nodes nodes = make(3);
  auto ends = nodes.session->start(fake_request(3), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  stream(*ends, 3, 300, 16);
}

TEST_P(ClusterTest, BytesOnTheWireAreThoseOfEveryHop) {
  Nodes nodes = make(2);
  auto ends = nodes.session->start(fake_request(2), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  const std::uint64_t expected = 3 * (1000 + (GetParam() == "tcp" ? kFrameHeaderBytes : 0));
  EXPECT_EQ(bytes_of_a_message(*nodes.session, *ends, expected), expected);
}

TEST_P(ClusterTest, NodesWithoutAStageStandBy) {
  Nodes nodes = make(3);
  auto ends = nodes.session->start(fake_request(2), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_TRUE(pump(*ends, 2, 3));
  EXPECT_EQ(nodes.stage(2).loads, 0);
  if (!nodes.workers.empty()) {
    nodes.workers[2]->stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(pump(*ends, 2, 3)) << "nobody needs the third";
  }
}

TEST_P(ClusterTest, AStageThatCannotLoadIsNamedWithItsReason) {
  Nodes nodes = make(2);
  nodes.stage(1).after_load = []() -> Result<std::uint64_t> {
    return make_error(ErrorCode::kNoMemory, "needs 9 GiB, has 4 GiB");
  };
  const auto ends = nodes.session->start(fake_request(2), after_ms(20'000));
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(ends.error().message, AllOf(HasSubstr("stage 2 of 2"), HasSubstr("needs 9 GiB, has 4 GiB")));
  nodes.session->stop();
  EXPECT_EQ(nodes.stage(0).unloads, nodes.stage(0).loads);
  EXPECT_EQ(nodes.stage(1).unloads, 1);
}

TEST_P(ClusterTest, AStageThatFailsAtWorkEndsTheWaitOfEveryoneAndIsNamed) {
  Nodes nodes = make(3);
  nodes.stage(1).before_answer = []() -> Status { return make_error(ErrorCode::kBadData, "the cache is gone"); };
  auto ends = nodes.session->start(fake_request(3), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  ASSERT_TRUE(ends->input->send({}, after_ms(5000)));
  const auto answer = ends->output->receive({}, after_ms(60'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kBadData);
  EXPECT_THAT(answer.error().message, AllOf(HasSubstr("stage 2 of 3"), HasSubstr("the cache is gone")));
  EXPECT_TRUE(nodes.session->failed());
}

TEST_P(ClusterTest, ANodeRunsSeveralStagesWhereverTheyAre) {
  for (const std::vector<int>& nodes_of_stages :
       std::vector<std::vector<int>>{{0, 1, 0, 1}, {0, 0}, {1, 0, 0, 1, 2, 1}, {2, 0, 2, 0, 2}}) {
    const int stages = static_cast<int>(nodes_of_stages.size());
    Nodes nodes = make(3);
    run(nodes, fake_scattered_plan(nodes_of_stages), stages);
    for (int node = 0; node < 3; ++node) {
      const auto had = static_cast<std::size_t>(std::ranges::count(nodes_of_stages, node));
      FakeStage& stage = nodes.stage(static_cast<std::size_t>(node));
      EXPECT_EQ(stage.assignments.size(), had);
      EXPECT_EQ(stage.loads, had > 0 ? 1 : 0) << "all its stages are loaded together";
      for (const Assignment& one : stage.assignments) {
        EXPECT_EQ(nodes_of_stages[static_cast<std::size_t>(one.rank.value)], node);
      }
    }
  }
}

// Fails when the other stages of a node wait for steps that will never come.
TEST_P(ClusterTest, OneOfANodesStagesThatFailsEndsTheOthers) {
  Nodes nodes = make(2);
  nodes.stage(0).before_answer = [calls = std::make_shared<std::atomic<int>>(0)]() -> Status {
    if (++*calls < 2) return {};
    return make_error(ErrorCode::kBadData, "the cache is gone");
  };
  auto ends = nodes.session->start(fake_request(fake_scattered_plan({0, 1, 0, 1})), after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  ASSERT_TRUE(ends->input->send({}, after_ms(5000)));
  const auto answer = ends->output->receive({}, after_ms(60'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kBadData);
  EXPECT_THAT(answer.error().message, AllOf(HasSubstr("3 of 4"), HasSubstr("the cache is gone")));
  nodes.session->stop();
  for (const std::size_t i : {0, 1}) EXPECT_EQ(nodes.stage(i).unloads, 1) << "nobody still waits for it";
}

TEST_P(ClusterTest, NotBeingReadyInTimeIsAnError) {
  Nodes nodes = make(2);
  std::latch go(1);
  nodes.stage(0).after_load = [&]() -> Result<std::uint64_t> {
    go.wait();
    return 1;
  };
  const auto ends = nodes.session->start(fake_request(2), after_ms(150));
  go.count_down();
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kTimeout);
}

TEST_P(ClusterTest, WeightsArriveWhole) {
  Nodes nodes = make(2);
  for (std::size_t n = 0; n < 2; ++n) {
    for (int i = 0; i < 20; ++i) {
      nodes.stage(n).wanted.push_back(
          {.name = std::string(static_cast<std::size_t>(i + 1), 'w'), .bytes_max = 1 << 20});
    }
  }
  StartRequest request = fake_request(2);
  request.weights = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    return fake_weight(name, name.size() * 10'001);
  };
  int reports = 0;
  request.progress = [&](const StartProgress& progress) {
    ++reports;
    EXPECT_EQ(progress.stages, 2);
  };
  std::map<std::string, NamedBytes> got[2];
  for (std::size_t n = 0; n < 2; ++n) {
    nodes.stage(n).after_load = [&, n]() -> Result<std::uint64_t> {
      got[n] = nodes.stage(n).weights;
      return 77 + n;
    };
  }
  auto ends = nodes.session->start(request, after_ms(20'000));
  ASSERT_TRUE(ends) << ends.error().message;
  ASSERT_EQ(ends->shares.size(), 2u);
  EXPECT_EQ(ends->shares[0].memory_bytes, 77u);
  EXPECT_EQ(ends->shares[1].memory_bytes, 78u);
  EXPECT_GT(reports, 0);
  for (const auto& weights : got) {
    ASSERT_EQ(weights.size(), 20u);
    for (const auto& [name, weight] : weights) {
      const NamedBytes expected = fake_weight(name, name.size() * 10'001);
      EXPECT_EQ(weight.type, 3u);
      EXPECT_EQ(weight.cols, expected.cols);
      EXPECT_TRUE(std::ranges::equal(weight.bytes, expected.bytes)) << name;
    }
  }
}

TEST_P(ClusterTest, AWeightThatTheProviderDoesNotHaveIsNamed) {
  Nodes nodes = make(1);
  nodes.stage(0).wanted = {{.name = "blk.0.attn_q.weight", .bytes_max = 10}};
  StartRequest request = fake_request(1);
  request.weights = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    return make_error(ErrorCode::kNotFound, "{} is not in the file", name);
  };
  const auto ends = nodes.session->start(request, after_ms(20'000));
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(ends.error().message, HasSubstr("blk.0.attn_q.weight is not in the file"));
}

TEST_P(ClusterTest, APlanThatDoesNotFitTheNodesIsRefused) {
  Nodes nodes = make(2);
  EXPECT_EQ(nodes.session->start(fake_request(3), after_ms(1000)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(nodes.session->start(fake_request(fake_scattered_plan({0, 2, 0})), after_ms(1000)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(nodes.session->start(fake_request(2), after_ms(20'000))) << "a refusal costs nothing";
  EXPECT_EQ(nodes.session->start(fake_request(2), after_ms(1000)).error().code, ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ClusterTest, kNodeKinds, name_of_kind);

TEST(RemoteWorker, AnAssignmentOfWhatNoModelCanBeIsAnsweredWithTheReason) {
  const ThreadWorker worker;
  ConnectOptions options;
  options.introduction = {.role = ConnectionRole::kControl, .session = make_session_id(), .label = "test"};
  ControlLink link(connect_tcp(worker.address(), options, after_ms(20'000)).value());
  ASSERT_TRUE(link.receive(after_ms(20'000)).value().has_worker_hello());
  control::ControlMessage message;
  message.mutable_assign()->set_epoch(3);
  message.mutable_assign()->set_model_sha256(std::string(32, 'a'));
  message.mutable_assign()->set_stages(1);
  message.mutable_assign()->add_shares();
  ASSERT_TRUE(link.send(message));
  const auto answer = link.receive(after_ms(20'000));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->failure().epoch(), 3u);
  EXPECT_THAT(answer->failure().message(), HasSubstr("number of layers is 0"));
  EXPECT_FALSE(link.receive(after_ms(20'000))) << "and the session is over";
}

TEST(InprocCluster, WeightsAreTheProvidersOwnBytes) {
  FakeStage stage;
  stage.wanted = {{.name = "a", .bytes_max = 1 << 20}};
  const NamedBytes weight = fake_weight("a", 1000);
  const std::byte* seen = nullptr;
  stage.after_load = [&]() -> Result<std::uint64_t> {
    seen = stage.weights["a"].bytes.data();
    return 0;
  };
  const auto session = make_inproc_cluster({{.delegate = &stage}});
  StartRequest request = fake_request(1);
  request.weights = [&](const std::string&, const WeightPart&) -> Result<NamedBytes> { return weight; };
  ASSERT_TRUE(session->start(request, after_ms(10'000)));
  EXPECT_EQ(seen, weight.bytes.data());
}

TEST(RemoteCluster, WorkersDescribeThemselves) {
  WorkerOptions options;
  options.node = {.name = "box",
                  .isa = Isa::kAvx2,
                  .threads = 3,
                  .memory_bytes = 5,
                  .memory_read_gb_per_s = 1.5,
                  .fp32_gflops = 2.5,
                  .int8_gops = 3.5};
  const ThreadWorker worker(options);
  const auto session = connect_cluster({worker.address()}, after_ms(10'000)).value();
  const NodeDescriptor& node = session->nodes().front();
  EXPECT_EQ(node.name, "box");
  EXPECT_EQ(node.address, worker.address());
  EXPECT_EQ(node.isa, Isa::kAvx2);
  EXPECT_EQ(node.threads, 3);
  EXPECT_EQ(node.memory_bytes, 5u);
  EXPECT_EQ(node.memory_read_gb_per_s, 1.5);
  EXPECT_EQ(node.fp32_gflops, 2.5);
  EXPECT_EQ(node.int8_gops, 3.5);
}

TEST(RemoteCluster, ASecondCoordinatorIsToldWhoIsThere) {
  const ThreadWorker worker({.busy_grace = std::chrono::milliseconds(50)});
  const auto first = connect_cluster({worker.address()}, after_ms(10'000), {.name = "anna's queue"}).value();
  const auto second = connect_cluster({worker.address()}, after_ms(10'000), {.name = "bert"});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, AllOf(HasSubstr(worker.address()), HasSubstr("busy"), HasSubstr("anna's queue")));
  first->stop();
  const auto third = connect_cluster({worker.address()}, after_ms(10'000));
  EXPECT_TRUE(third) << third.error().message;
}

TEST(RemoteCluster, ACoordinatorThatComesAnewTakesThePlaceOfItsOwnDeadConnection) {
  const ThreadWorker worker({.busy_grace = std::chrono::milliseconds(50)});
  ConnectOptions connecting;
  connecting.introduction = {.role = ConnectionRole::kControl, .session = make_session_id(), .label = "anna's queue"};
  ControlLink first(connect_tcp(worker.address(), connecting, after_ms(10'000)).value());
  const auto hello = first.receive(after_ms(10'000)).value();
  ASSERT_TRUE(hello.has_worker_hello());
  connecting.introduction.label = encode_control_label(
      {.coordinator = "anna's queue", .lost = read_worker_identity(hello.worker_hello().identity())});
  ControlLink second(connect_tcp(worker.address(), connecting, after_ms(10'000)).value());
  EXPECT_TRUE(second.receive(after_ms(10'000)).value().has_worker_hello());
  EXPECT_FALSE(first.receive(after_ms(10'000)));
}

TEST(RemoteCluster, AReleasedWorkerServesTheNextCoordinatorAtOnce) {
  ThreadWorker worker;
  for (int round = 1; round <= 5; ++round) {
    const auto session = connect_cluster({worker.address()}, after_ms(10'000));
    ASSERT_TRUE(session) << session.error().message;
    auto ends = (*session)->start(fake_request(1), after_ms(10'000));
    ASSERT_TRUE(ends) << ends.error().message;
    EXPECT_TRUE(pump(*ends, 1, 3));
    (*session)->stop();
    EXPECT_EQ(worker.stage.unloads, round);
  }
}

TEST(RemoteCluster, AStoppedWorkerEndsItsSessionAndReturnsPromptly) {
  ThreadWorker worker;
  const auto session = connect_cluster({worker.address()}, after_ms(10'000)).value();
  auto ends = session->start(fake_request(1), after_ms(10'000));
  ASSERT_TRUE(ends);
  worker.stop();
  EXPECT_TRUE(worker.status);
  EXPECT_EQ(worker.stage.unloads, 1);
  const auto answer = ends->output->receive({}, after_ms(60'000));
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr(worker.address()));
}

TEST(RemoteCluster, NamesTheWorkerThatCannotBeReached) {
  const ThreadWorker there;
  const std::string nowhere = Listener::create({}).value()->address();
  const auto session = connect_cluster({there.address(), nowhere}, after_ms(10'000));
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(session.error().message, HasSubstr(nowhere));
}

TEST(RemoteCluster, TheSameWorkerTwiceAndNoneAtAllAreRefused) {
  EXPECT_EQ(connect_cluster({"h:1", "h:1"}, after_ms(10)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(connect_cluster({}, after_ms(10)).error().code, ErrorCode::kInvalidArgument);
}

TEST(RemoteCluster, AWorkerThatNeverSaysHelloCostsNoMoreThanTheDeadline) {
  const auto listener = Listener::create({}).value();
  std::optional<Result<Arrival>> arrival;
  std::thread mute([&] { arrival.emplace(listener->accept(after_ms(10'000))); });
  const auto session = connect_cluster({listener->address()}, after_ms(200));
  mute.join();
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, ErrorCode::kTimeout);
}

// A worker's first start measures for seconds: it listens meanwhile, and who connects waits for as long as it takes.
TEST(RemoteCluster, AWorkerThatMeasuresItsSpeedIsWaitedForBeyondTheDeadline) {
  std::promise<Result<NodeDescriptor>> measuring;
  ThreadWorker worker({.node = {.name = "early"}, .measured = measuring.get_future().share()});
  std::jthread measured;
  const auto before = ask_status(worker.address(), {}, after_ms(20'000));
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_TRUE(before->worker->measuring);
  measured = std::jthread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    measuring.set_value(NodeDescriptor{.name = "measured", .memory_read_gb_per_s = 12.5, .dispatch_us = 2.5});
  });
  const auto session = connect_cluster({worker.address()}, after_ms(1000));
  ASSERT_TRUE(session) << session.error().message;
  ASSERT_EQ((*session)->nodes().size(), 1u);
  EXPECT_EQ((*session)->nodes()[0].name, "measured");
  EXPECT_EQ((*session)->nodes()[0].memory_read_gb_per_s, 12.5);
  EXPECT_EQ((*session)->nodes()[0].dispatch_us, 2.5);
  EXPECT_FALSE(ask_status(worker.address(), {}, after_ms(20'000)).value().worker->measuring);
}

TEST(RemoteCluster, AWorkerThatCannotMeasureItselfSaysWhy) {
  std::promise<Result<NodeDescriptor>> measuring;
  measuring.set_value(make_error(ErrorCode::kNoMemory, "the system refused 256 MiB"));
  ThreadWorker worker({.measured = measuring.get_future().share()});
  const auto session = connect_cluster({worker.address()}, after_ms(5000));
  ASSERT_FALSE(session);
  EXPECT_THAT(session.error().message, HasSubstr("refused 256 MiB"));
}

TEST(Status, AWorkerTellsWhatItUsesOverThreeSpansOfTime) {
  ThreadWorker worker;
  for (;;) {
    const auto status = ask_status(worker.address(), {}, after_ms(20'000));
    ASSERT_TRUE(status) << status.error().message;
    if (status->worker->usage.empty()) continue;  // younger than its first sample
    ASSERT_EQ(status->worker->usage.size(), 3u);
    for (const UsageWindow& window : status->worker->usage) EXPECT_GT(window.memory_bytes, 0u);
    return;
  }
}

TEST(RemoteCluster, AWorkerListensOnLoopbackOnly) {
  FakeStage stage;
  const auto server = WorkerServer::create({.listen = "0.0.0.0:0"}, stage);
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().message, HasSubstr("loopback only"));
}

}  // namespace
}  // namespace butterfly
