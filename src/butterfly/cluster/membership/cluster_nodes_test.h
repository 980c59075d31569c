// Nodes of either kind under one session, and what the tests of the cluster do with every plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "butterfly/cluster/membership/fake_stage_test.h"

namespace butterfly {

struct Nodes {
  std::vector<std::unique_ptr<ThreadWorker>> workers;
  std::vector<std::unique_ptr<FakeStage>> threads;
  std::unique_ptr<ClusterSession> session;  // last: gone before its nodes
  FakeStage& stage(std::size_t i) { return workers.empty() ? *threads[i] : workers[i]->stage; }
};

inline std::vector<std::string> addresses_of(const std::vector<std::unique_ptr<ThreadWorker>>& workers) {
  std::vector<std::string> addresses;
  for (const auto& worker : workers) addresses.push_back(worker->address());
  return addresses;
}

/// "tcp": workers; else threads.
inline Nodes make_nodes(const std::string& kind, int count) {
  Nodes nodes;
  if (kind == "tcp") {
    for (int i = 0; i < count; ++i) nodes.workers.push_back(std::make_unique<ThreadWorker>());
    nodes.session = connect_cluster(addresses_of(nodes.workers), after_ms(10'000)).value();
    return nodes;
  }
  std::vector<InprocNode> inproc;
  for (int i = 0; i < count; ++i) {
    nodes.threads.push_back(std::make_unique<FakeStage>());
    inproc.push_back({.delegate = nodes.threads.back().get()});
  }
  nodes.session = make_inproc_cluster(std::move(inproc));
  return nodes;
}

/// Claims about nodes of both kinds; instantiate with kNodeKinds.
class NodesTest : public ::testing::TestWithParam<std::string> {
 protected:
  Nodes make(int count) const { return make_nodes(GetParam(), count); }

  /// Runs `plan`, which has `stages` stages, from its start to its end.
  void run(Nodes& nodes, const Plan& plan, int stages) const {
    auto ends = nodes.session->start(fake_request(plan), after_ms(20'000));
    ASSERT_TRUE(ends) << ends.error().message;
    ASSERT_EQ(ends->shares.size(), plan.shares.size());
    for (std::size_t share = 0; share < plan.shares.size(); ++share) {
      const bool alone = plan.shares[share].work.slices.whole();
      const ExchangeTimes& times = ends->shares[share].times;
      EXPECT_EQ(times.measured(), !alone);
      EXPECT_DOUBLE_EQ(times.one_row_s, alone ? 0.0 : 1e-6 * plan.shares[share].work.first_layer) << "of its own group";
    }
    const Status pumped = pump(*ends, stages, 20);
    EXPECT_TRUE(pumped) << pumped.error().message;
    EXPECT_FALSE(nodes.session->failed());
    nodes.session->stop();
  }
};
inline const auto kNodeKinds = ::testing::Values("inproc", "tcp");
inline std::string name_of_kind(const ::testing::TestParamInfo<std::string>& kind) {
  return kind.param;
}

/// Sends messages that grow by `growth` bytes while answers are read: as many as the channels take are under way.
inline void stream(PipelineChannels& ends, int stages, std::uint64_t messages, std::uint64_t growth) {
  const std::jthread sender([&] {
    for (std::uint64_t i = 0; i < messages; ++i) {
      const Payload payload = allocate_payload(64 + i * growth).value();
      std::ranges::fill(payload.bytes, std::byte{7});
      ASSERT_TRUE(ends.input->send({.tag = i, .payload = payload}, after_ms(20'000)));
    }
  });
  for (std::uint64_t i = 0; i < messages; ++i) {
    const auto answer = ends.output->receive({}, after_ms(20'000));
    ASSERT_TRUE(answer) << answer.error().message;
    ASSERT_EQ(answer->tag, i);
    ASSERT_EQ(answer->payload.bytes.back(), std::byte(7 + stages));
  }
}

/// One message of 1000 bytes through the pipeline; the bytes that all connections counted, once they are `expected`:
/// an answer can be here before its sender has counted it.
inline std::uint64_t bytes_of_a_message(ClusterSession& session, PipelineChannels& ends, std::uint64_t expected) {
  EXPECT_TRUE(ends.input->send({.payload = allocate_payload(1000).value()}, after_ms(5000)));
  EXPECT_TRUE(ends.output->receive({}, after_ms(5000)));
  const Deadline deadline = after_ms(5000);
  std::uint64_t counted = 0;
  while (counted < expected && std::chrono::steady_clock::now() < deadline) {
    counted = session.data_traffic(after_ms(5000)).value().bytes;
  }
  return counted;
}

}  // namespace butterfly
