// Promise 1 for tensor groups and for nodes with several stages: however the slices of a stage are divided over
// members, whatever their sums travel through, and how often a node is visited, logits equal those of one node by
// memcmp.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <thread>

#include "butterfly/cluster/membership/membership.h"
#include "butterfly/cluster/worker/worker_server.h"
#include "butterfly/infer/deployment/cluster_deployment.h"
#include "butterfly/infer/request/sampler.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/stage/stage_host.h"
#include "completed_step.h"

namespace butterfly {
namespace {

/// Two key/value heads, so that most groups have more members than those; a vocabulary that no group divides evenly.
ModelConfig small_config() {
  ModelConfig config;
  config.name = "small";
  config.layers = 3;
  config.model_dim = 128;
  config.heads = 12;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ff_dim = 1120;
  config.vocab = 301;
  config.context = 128;
  config.rope.dim = config.head_dim;
  return config;
}

/// The borders of the slices of each member, for each pipeline stage.
using Groups = std::vector<std::vector<int>>;

std::string to_string(const Groups& groups) {
  std::string text;
  for (const auto& borders : groups) text += fmt::format("[{}]", fmt::join(borders, " "));
  return text;
}

/// Over each number of nodes in turn.
Plan plan_of(const ModelConfig& config, const Groups& groups, int nodes) {
  Plan plan;
  const int stages = static_cast<int>(groups.size());
  for (int g = 0; g < stages; ++g) {
    int first_slice = 0;
    for (const int last_slice : groups[static_cast<std::size_t>(g)]) {
      plan.shares.push_back({.node = static_cast<int>(plan.shares.size()) % nodes,
                             .work = {.first_layer = config.layers * g / stages,
                                      .last_layer = config.layers * (g + 1) / stages,
                                      .embedding = g == 0,
                                      .head = g + 1 == stages,
                                      .slices = {first_slice, last_slice}}});
      first_slice = last_slice;
    }
  }
  return plan;
}

/// The logits of every step for two texts side by side: a prompt in chunks, then tokens one by one.
Result<std::vector<float>> logits_of(Pipeline& pipeline, int vocab) {
  Schedule schedule({.rows_max = 9, .depth = pipeline.depth()});
  for (int text = 0; text < 2; ++text) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < 14 + 6 * text; ++i) prompt.emplace_back((i * 131 + text * 97 + 7) % vocab);
    schedule.add(prompt);
  }
  std::map<int, std::vector<float>> logits;  // by text: steps of other plans have other neighbours
  while (!schedule.idle()) {
    BF_ASSIGN_OR_RETURN(Step step, completed_step(pipeline, schedule));
    std::int64_t row = 0;
    for (const SequenceRun& run : step.batch.runs) {
      if (run.logits_from == run.rows) continue;
      const std::span<float> values = step.tensor.row(row++);
      auto& all = logits[run.sequence.value];
      all.insert(all.end(), values.begin(), values.end());
      if (schedule.tokens(run.sequence).size() > 21) {
        schedule.finish(run.sequence);
      } else {
        schedule.append(run.sequence, draw(values, {}, {}));
      }
    }
  }
  std::vector<float> flat;
  for (const auto& [text, values] : logits) flat.insert(flat.end(), values.begin(), values.end());
  return flat;
}

/// A worker with a model's share, on threads of this process.
class Worker {
 public:
  explicit Worker(SharedMemoryUse use) : host_({.threads = 1, .isa = choose_isa().value()}) {
    server_ =
        WorkerServer::create({.drain_timeout = std::chrono::milliseconds(50), .shared_memory = use}, host_).value();
    thread_ = std::jthread([this](const std::stop_token& stop) { static_cast<void>(server_->run(stop)); });
  }
  std::string address() const { return server_->address(); }

 private:
  StageHost host_;
  std::unique_ptr<WorkerServer> server_;
  std::jthread thread_;
};

/// What is served, and in which cache.
struct Served {
  Checkpoint checkpoint;
  DType kv_type = DType::kF16;
};

Result<std::vector<float>> run_session(ClusterSession& session, const Served& served, const Groups& groups, int nodes,
                                       Epoch epoch, std::uint64_t* weight_bytes = nullptr) {
  const Checkpoint& checkpoint = served.checkpoint;
  StartRequest request = start_request(checkpoint, {.kv_type = served.kv_type});
  request.progress = [&](const StartProgress& progress) {
    if (weight_bytes != nullptr) *weight_bytes = progress.weight_bytes;
  };
  request.epoch = epoch;
  request.model.hash = std::string(64, '0');
  request.plan = plan_of(checkpoint.config, groups, nodes);
  BF_ASSIGN_OR_RETURN(PipelineChannels ends, session.start(request, after_ms(60'000)));
  ChannelPipeline pipeline({.output_dim = checkpoint.config.vocab});
  pipeline.connect(*ends.input, *ends.output, static_cast<int>(groups.size()));
  auto logits = logits_of(pipeline, checkpoint.config.vocab);
  session.stop();
  return logits;
}

Result<std::vector<float>> run_threads(const Served& served, const Groups& groups, int nodes) {
  std::vector<std::unique_ptr<StageHost>> hosts;
  std::vector<InprocNode> members;
  for (int i = 0; i < nodes; ++i) {
    hosts.push_back(std::make_unique<StageHost>(StageHostOptions{.threads = 1, .isa = choose_isa().value()}));
    members.push_back({.delegate = hosts.back().get()});
  }
  return run_session(*make_inproc_cluster(std::move(members)), served, groups, nodes, Epoch(1));
}

class DistGroupAnswer : public testing::TestWithParam<DType> {
 protected:
  virtual ModelConfig config() const { return small_config(); }
  virtual DType kv_type(const ModelConfig& model) const { return kv_type_for(model); }
  void SetUp() override {
    served.checkpoint = random_checkpoint(config(), {.seed = 3, .type = GetParam()}).value();
    served.kv_type = kv_type(served.checkpoint.config);
    const Checkpoint& checkpoint = served.checkpoint;
    auto stage =
        Stage::load(checkpoint.config, {.last_layer = checkpoint.config.layers, .embedding = true, .head = true},
                    checkpoint.weights, {.isa = choose_isa().value(), .kv_type = served.kv_type});
    ASSERT_TRUE(stage) << stage.error().message;
    const auto pipeline = make_local_pipeline(std::move(*stage));
    expected = logits_of(*pipeline, checkpoint.config.vocab).value();
    ASSERT_GT(expected.size(), 10u * static_cast<unsigned>(checkpoint.config.vocab));
  }
  void expect_same(const Result<std::vector<float>>& logits, const std::string& what) const {
    ASSERT_TRUE(logits) << what << ": " << logits.error().message;
    ASSERT_EQ(logits->size(), expected.size()) << what;
    EXPECT_EQ(std::memcmp(logits->data(), expected.data(), expected.size() * sizeof(float)), 0) << what;
  }

  Served served;
  std::vector<float> expected;
};

constexpr int kNodes = 12;
const std::vector<Groups> kGroups{{{16, 32}},
                                  {{1, 32}},
                                  {{11, 21, 32}},
                                  {{8, 16, 24, 32}},
                                  {{4, 7, 19, 26, 32}},
                                  {{5, 9, 14, 18, 23, 27, 32}},
                                  {{3, 5, 8, 11, 13, 16, 19, 21, 24, 27, 29, 32}},
                                  {{16, 32}, {21, 32}},
                                  {{32}, {3, 17, 32}, {32}}};

TEST_P(DistGroupAnswer, OfThreadsWhateverTheGroups) {
  for (const Groups& groups : kGroups) expect_same(run_threads(served, groups, kNodes), to_string(groups));
}

TEST_P(DistGroupAnswer, OfWorkersWhateverTheGroupsAndWhatTheirSumsTravelThrough) {
  for (const auto use : {SharedMemoryUse::kAllowed, SharedMemoryUse::kForbidden}) {
    std::vector<std::unique_ptr<Worker>> workers;
    MembershipOptions options;
    for (int i = 0; i < kNodes; ++i) {
      workers.push_back(std::make_unique<Worker>(use));
      options.workers.push_back(workers.back()->address());
    }
    const auto membership = Membership::create(options, after_ms(20'000)).value();
    for (const Groups& groups : kGroups) {
      // The workers keep what they have of one epoch for the next, of other slices.
      const auto session = membership->next_epoch(membership->members());
      expect_same(run_session(*session, served, groups, kNodes, membership->epoch()), to_string(groups));
    }
  }
}

TEST_P(DistGroupAnswer, OfWorkersThatReceiveTheirSharesAlone) {
  const Groups groups{{3, 17, 32}};
  std::vector<std::unique_ptr<Worker>> workers;
  MembershipOptions options;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<Worker>(SharedMemoryUse::kAllowed));
    options.workers.push_back(workers.back()->address());
  }
  const auto membership = Membership::create(options, after_ms(20'000)).value();
  const auto session = membership->next_epoch(membership->members());
  std::uint64_t sent = 0;
  expect_same(run_session(*session, served, groups, 3, membership->epoch(), &sent), "shares alone");
  const ModelCost cost = model_cost(served.checkpoint.config, DType::kF16).value();
  std::uint64_t shares = 0;
  for (const StageAssignment& share : plan_of(served.checkpoint.config, groups, 3).stages())
    shares += share_bytes(cost, share, {}).weights;
  EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(shares), 0.01 * static_cast<double>(shares));
  const auto whole =
      static_cast<double>(share_bytes(cost, plan_of(served.checkpoint.config, {{32}}, 1).shares[0].work, {}).weights);
  EXPECT_LT(static_cast<double>(sent), 1.25 * whole) << "norms, and keys and values that neighbours share";
}

/// Fewer nodes than shares: each has several stages, in the last ones as members of several groups.
const std::vector<std::pair<int, Groups>> kScattered{{1, {{32}, {32}, {32}}},
                                                     {2, {{32}, {32}, {32}}},
                                                     {2, {{16, 32}, {32}, {21, 32}}},
                                                     {3, {{11, 32}, {16, 32}, {3, 32}}}};

TEST_P(DistGroupAnswer, OfNodesWithSeveralStages) {
  std::vector<std::unique_ptr<Worker>> workers;
  MembershipOptions options;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<Worker>(SharedMemoryUse::kAllowed));
    options.workers.push_back(workers.back()->address());
  }
  const auto membership = Membership::create(options, after_ms(20'000)).value();
  for (const auto& [nodes, groups] : kScattered) {
    const std::string what = fmt::format("{} over {}", to_string(groups), nodes);
    expect_same(run_threads(served, groups, nodes), "threads: " + what);
    const auto session = membership->next_epoch(membership->members());
    expect_same(run_session(*session, served, groups, nodes, membership->epoch()), "workers: " + what);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DistGroupAnswer, testing::Values(DType::kF32, DType::kQ4_0),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });

/// Over threads all groups, or every `stride`-th, the first of them chosen by the type; over workers, which compute the
/// same and differ in how shares and sums travel, every third.
class DistThreadsAndWorkers : public DistGroupAnswer {
 protected:
  void expect_same_of_threads_and_workers(std::size_t stride = 1) const {
    const auto type = static_cast<std::size_t>(GetParam());
    for (std::size_t i = type % stride; i < kGroups.size(); i += stride)
      expect_same(run_threads(served, kGroups[i], kNodes), "threads: " + to_string(kGroups[i]));
    std::vector<std::unique_ptr<Worker>> workers;
    MembershipOptions options;
    for (int i = 0; i < kNodes; ++i) {
      workers.push_back(std::make_unique<Worker>(SharedMemoryUse::kAllowed));
      options.workers.push_back(workers.back()->address());
    }
    const auto membership = Membership::create(options, after_ms(20'000)).value();
    for (std::size_t i = type % 3; i < kGroups.size(); i += 3) {
      const auto session = membership->next_epoch(membership->members());
      expect_same(run_session(*session, served, kGroups[i], kNodes, membership->epoch()),
                  "workers: " + to_string(kGroups[i]));
    }
  }
};

/// Experts in slices that differ, a shared one with a gate, and a dense layer before them.
class DistExpertsAnswer : public DistThreadsAndWorkers {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_config();
    config.moe = {.experts = 13,
                  .experts_used = 3,
                  .ff_dim = 96,
                  .layers = {0, 1, 1},
                  .renormalise = true,
                  .weight_scale = 1.5f,
                  .shared_ff_dim = 160,
                  .shared_gate = true};
    return config;
  }
};

TEST_P(DistExpertsAnswer, WhateverTheGroups) {
  expect_same_of_threads_and_workers();
}

/// Fewer experts than slices: some members have none. Every choice of gpt-oss.
class DistFewExpertsAnswer : public DistGroupAnswer {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_config();
    config.moe = {.experts = 5,
                  .experts_used = 2,
                  .ff_dim = 64,
                  .scores = MoeConfig::Scores::kSoftmaxOfChosen,
                  .router_bias = true,
                  .expert_bias = true,
                  .swiglu_limit = 1.0f};
    return config;
  }
};

TEST_P(DistFewExpertsAnswer, WhateverTheGroups) {
  for (const Groups& groups : kGroups) expect_same(run_threads(served, groups, kNodes), to_string(groups));
}

INSTANTIATE_TEST_SUITE_P(Types, DistExpertsAnswer, testing::Values(DType::kF32, DType::kQ8_0),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });
INSTANTIATE_TEST_SUITE_P(Types, DistFewExpertsAnswer, testing::Values(DType::kF32, DType::kQ8_0),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });

/// Types in blocks of 256, in rows of one and of three of them: slices of 96 columns begin within blocks.
class DistSubBlockAnswer : public DistThreadsAndWorkers {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_config();
    config.model_dim = 256;
    config.ff_dim = 768;
    return config;
  }
};

// Ten types, of which each second has the groups that the others have not.
TEST_P(DistSubBlockAnswer, WhateverTheGroups) {
  expect_same_of_threads_and_workers(2);
}

/// Latent attention, whose cache all members have whole, and sinks in windows.
class DistLatentAnswer : public DistSubBlockAnswer {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_config();
    config.kv_heads = 1;
    config.head_dim = 48;
    config.rope.dim = 16;
    config.latent = {.dim = 64, .query_rank = 96, .value_dim = 32};
    config.attention_sinks = true;
    config.windows = {0, 5, 0};
    return config;
  }
};

TEST_P(DistLatentAnswer, WhateverTheGroups) {
  expect_same_of_threads_and_workers();
}

/// A cache in q8_0 whose blocks end within a head, with windows and sinks.
class DistQ8CacheAnswer : public DistSubBlockAnswer {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_config();
    config.head_dim = config.rope.dim = 40;
    config.heads = 16;
    config.attention_sinks = true;
    config.windows = {0, 5, 0};
    return config;
  }
  DType kv_type(const ModelConfig& /*model*/) const override { return DType::kQ8_0; }
};

TEST_P(DistQ8CacheAnswer, WhateverTheGroups) {
  expect_same_of_threads_and_workers();
}

/// The same of latents, which are keys and values at once.
class DistQ8LatentAnswer : public DistLatentAnswer {
 protected:
  DType kv_type(const ModelConfig& /*model*/) const override { return DType::kQ8_0; }
};

TEST_P(DistQ8LatentAnswer, WhateverTheGroups) {
  expect_same_of_threads_and_workers();
}

INSTANTIATE_TEST_SUITE_P(Types, DistQ8CacheAnswer, testing::Values(DType::kF32, DType::kQ4_0),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });
INSTANTIATE_TEST_SUITE_P(Types, DistQ8LatentAnswer, testing::Values(DType::kF32, DType::kQ4_1),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });

INSTANTIATE_TEST_SUITE_P(Types, DistLatentAnswer, testing::Values(DType::kF32, DType::kQ8_0, DType::kQ4_1),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });

INSTANTIATE_TEST_SUITE_P(Types, DistSubBlockAnswer,
                         testing::Values(DType::kQ4_1, DType::kQ5_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                         DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS, DType::kMXFP4, DType::kInt8),
                         [](const auto& parameter) { return std::string(butterfly::to_string(parameter.param)); });

}  // namespace
}  // namespace butterfly
