// Nodes of either kind under one session, for the tests of the cluster.
#pragma once

#include "butterfly/cluster/fake_stage_test.h"

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

}  // namespace butterfly
