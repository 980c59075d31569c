#include "butterfly/infer/deployment.h"

#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/infer/worker_deployment.h"
#include "butterfly/machine/topology.h"
#include "butterfly/stage/run_stage.h"
#include "butterfly/wire/inproc.h"

namespace butterfly {
namespace {

Result<Isa> isa_of_node(const DeploymentOptions& options, std::size_t node) {
  if (options.isas.empty()) return choose_isa();
  return options.isas[node % options.isas.size()];
}

NodeReport report(const std::string& name, const Stage& stage) {
  return {name, stage.assignment(), stage.memory_bytes()};
}

/// Every layer on the caller's thread.
class LocalDeployment final : public Deployment {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const Plan& plan,
                                                    const DeploymentOptions& options) {
    BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(options, 0));
    BF_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                        Stage::load(checkpoint.config, plan.stages[0], *checkpoint.weights,
                                    {.threads = options.threads, .isa = isa, .kv_type = options.kv_type}));
    return std::unique_ptr<Deployment>(new LocalDeployment(std::move(stage), plan));
  }

  Pipeline& pipeline() override { return *pipeline_; }
  std::vector<NodeReport> nodes() const override { return {report("this process", *stage_)}; }
  const Plan& plan() const override { return plan_; }
  std::uint64_t wire_bytes() const override { return 0; }

 private:
  LocalDeployment(std::unique_ptr<Stage> stage, const Plan& plan)
      : plan_(plan), stage_(stage.get()), pipeline_(make_local_pipeline(std::move(stage))) {}

  Plan plan_;
  const Stage* stage_;
  std::unique_ptr<Pipeline> pipeline_;
};

/// Nodes as threads: activations change hands without being copied.
class ThreadDeployment final : public Deployment {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const Plan& plan,
                                                    const DeploymentOptions& options) {
    std::unique_ptr<ThreadDeployment> made(new ThreadDeployment(plan));
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(options, i));
      BF_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                          Stage::load(checkpoint.config, plan.stages[i], *checkpoint.weights,
                                      {.threads = options.threads, .isa = isa, .kv_type = options.kv_type}));
      made->stages_.push_back(std::move(stage));
    }
    made->start(checkpoint.config.vocab);
    return std::unique_ptr<Deployment>(std::move(made));
  }

  ~ThreadDeployment() override {
    for (const ChannelPtr& channel : channels_) channel->close();
    for (std::jthread& thread : threads_) thread.request_stop();
  }

  Pipeline& pipeline() override { return *pipeline_; }
  std::vector<NodeReport> nodes() const override {
    std::vector<NodeReport> reports;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      reports.push_back(report(fmt::format("node {}", plan_.node_of_stage[i]), *stages_[i]));
    }
    return reports;
  }
  const Plan& plan() const override { return plan_; }
  std::uint64_t wire_bytes() const override { return 0; }

 private:
  explicit ThreadDeployment(const Plan& plan) : plan_(plan) {}

  void start(int vocab) {
    auto [first, feed] = make_inproc_pair();
    ChannelPtr input = std::move(feed);
    Channel* head = first.get();
    channels_.push_back(std::move(first));
    for (const std::unique_ptr<Stage>& stage : stages_) {
      auto [output, next] = make_inproc_pair();
      threads_.emplace_back([&stage = *stage, from = input.get(), to = output.get()](const std::stop_token& stop) {
        const Status status = run_stage(stage, *from, *to, stop);
        if (!status) log().error("a node ended: {}", status.error().message);
        to->close();
      });
      channels_.push_back(std::move(input));
      channels_.push_back(std::move(output));
      input = std::move(next);
    }
    Channel* tail = input.get();
    channels_.push_back(std::move(input));
    pipeline_ = make_channel_pipeline(*head, *tail, {.depth = static_cast<int>(stages_.size()), .vocab = vocab});
  }

  Plan plan_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<ChannelPtr> channels_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::jthread> threads_;  // last: joined before what they use goes
};

}  // namespace

Result<std::unique_ptr<Deployment>> Deployment::create(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  if (options.threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads were asked for, at least 1 is needed", options.threads);
  }
  if (!options.workers.empty()) return deploy_on_workers(checkpoint, options);
  if (options.nodes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} nodes were asked for, at least 1 is needed", options.nodes);
  }
  // The nodes are alike, so no split depends on their speed; together they have the memory of one process.
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  NodeDescriptor node;
  node.threads = options.threads;
  node.memory_bytes = topology.available_memory_bytes / static_cast<std::uint64_t>(options.nodes);
  node.memory_read_gb_per_s = node.fp32_gflops = 1.0;
  std::vector<NodeDescriptor> nodes(static_cast<std::size_t>(options.nodes), node);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].name = fmt::format("node {}", i);
  BF_ASSIGN_OR_RETURN(const Plan plan,
                      make_plan(checkpoint.config, nodes,
                                {.strategy = options.split,
                                 .sequences = options.sequences,
                                 .kv_type = options.kv_type.value_or(kv_type_for(checkpoint.config))}));
  if (plan.stages.size() == 1) return LocalDeployment::create(checkpoint, plan, options);
  return ThreadDeployment::create(checkpoint, plan, options);
}

}  // namespace butterfly
