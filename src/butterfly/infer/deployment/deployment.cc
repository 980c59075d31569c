#include "butterfly/infer/deployment/deployment.h"

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/infer/deployment/cluster_deployment.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/plan/partition/share_groups.h"
#include "butterfly/stage/stage_host.h"

namespace butterfly {
namespace {

Result<Isa> isa_of_node(const DeploymentOptions& options, std::size_t node) {
  if (options.isas.empty()) return choose_isa();
  return options.isas[node % options.isas.size()];
}

/// Every layer on the caller's thread.
class LocalDeployment final : public Deployment {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const Plan& plan,
                                                    const DeploymentOptions& options) {
    BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(options, 0));
    BF_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                        Stage::load(checkpoint.config, plan.shares[0].work, checkpoint.weights,
                                    {.threads = options.threads, .isa = isa, .kv_type = options.kv_type}));
    return std::unique_ptr<Deployment>(new LocalDeployment(std::move(stage), plan));
  }

  Pipeline& pipeline() override { return *pipeline_; }
  std::vector<NodeReport> nodes() const override {
    return {{.name = "this process", .assignment = stage_->assignment(), .memory_bytes = stage_->memory_bytes()}};
  }
  const Plan& plan() const override { return plan_; }
  std::uint64_t wire_bytes() const override { return 0; }

 private:
  LocalDeployment(std::unique_ptr<Stage> stage, const Plan& plan)
      : plan_(plan), stage_(stage.get()), pipeline_(make_local_pipeline(std::move(stage))) {}

  Plan plan_;
  const Stage* stage_;
  std::unique_ptr<Pipeline> pipeline_;
};

/// Stages on threads of this process.
class ThreadsDeployment final : public Deployment {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const Plan& plan,
                                                    std::vector<std::unique_ptr<StageHost>> hosts,
                                                    std::vector<InprocNode> nodes, const DeploymentOptions& options) {
    std::unique_ptr<ThreadsDeployment> made(new ThreadsDeployment(plan, std::move(hosts), std::move(nodes)));
    BF_TRY(made->start(checkpoint, options));
    return std::unique_ptr<Deployment>(std::move(made));
  }

  ~ThreadsDeployment() override { session_->stop(); }

  Pipeline& pipeline() override { return *pipeline_; }
  std::vector<NodeReport> nodes() const override {
    std::vector<NodeReport> reports;
    for (std::size_t i = 0; i < plan_.shares.size(); ++i) {
      const auto node = static_cast<std::size_t>(plan_.shares[i].node);
      const ReadyShare& ready = ends_.shares[i];
      reports.push_back({session_->nodes()[node].name, plan_.shares[i].work, ready.memory_bytes, ready.exchange,
                         ready.times, static_cast<double>(hosts_[node]->done().busy_ns) * 1e-9});
    }
    return reports;
  }
  const Plan& plan() const override { return plan_; }
  std::uint64_t wire_bytes() const override { return 0; }

 private:
  ThreadsDeployment(const Plan& plan, std::vector<std::unique_ptr<StageHost>> hosts, std::vector<InprocNode> nodes)
      : plan_(plan), hosts_(std::move(hosts)), session_(make_inproc_cluster(std::move(nodes))) {}

  Status start(const Checkpoint& checkpoint, const DeploymentOptions& options) {
    StartRequest request = start_request(checkpoint, options);
    request.plan = plan_;
    BF_ASSIGN_OR_RETURN(ends_, session_->start(request, after_ms(options.ready_timeout_ms)));
    pipeline_.emplace(
        ChannelPipelineOptions{.vocab = checkpoint.config.vocab, .step_timeout_ms = options.step_timeout_ms});
    pipeline_->connect(*ends_.input, *ends_.output, pipeline_stages(plan_.stages()));
    return {};
  }

  Plan plan_;
  std::vector<std::unique_ptr<StageHost>> hosts_;
  std::unique_ptr<ClusterSession> session_;
  PipelineChannels ends_;
  std::optional<ChannelPipeline> pipeline_;
};

Result<std::unique_ptr<Deployment>> deploy_here(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  // The nodes are alike, so no split depends on their speed; together they have the memory of one process.
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  NodeDescriptor node;
  node.threads = options.threads;
  node.memory_bytes = topology.available_memory_bytes / static_cast<std::uint64_t>(options.nodes);
  node.memory_read_gb_per_s = node.fp32_gflops = 1.0;
  std::vector<NodeDescriptor> nodes(static_cast<std::size_t>(options.nodes), node);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].name = fmt::format("node {}", i);
  DeploymentOptions planning = options;
  if (options.split == "auto") {
    planning.split = "uniform";
    if (options.progress && options.nodes > 1) options.progress("split uniform, as the nodes of one process are alike");
  }
  BF_ASSIGN_OR_RETURN(const Plan plan, plan_for(checkpoint, cluster_of(nodes), planning));
  if (options.nodes == 1 && plan.shares.size() == 1) return LocalDeployment::create(checkpoint, plan, options);
  if (options.progress && !plan.standby_nodes.empty()) {
    options.progress(fmt::format("{} of {} nodes stand by: the model has {} layers", plan.standby_nodes.size(),
                                 options.nodes, checkpoint.config.layers));
  }
  std::vector<std::unique_ptr<StageHost>> hosts;
  std::vector<InprocNode> members;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(options, i));
    hosts.push_back(std::make_unique<StageHost>(StageHostOptions{.threads = options.threads, .isa = isa}));
    members.push_back({nodes[i], hosts.back().get()});
  }
  return ThreadsDeployment::create(checkpoint, plan, std::move(hosts), std::move(members), options);
}

}  // namespace

Result<std::unique_ptr<Deployment>> Deployment::create(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  if (options.threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads were asked for, at least 1 is needed", options.threads);
  }
  if (options.nodes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} nodes were asked for, at least 1 is needed", options.nodes);
  }
  const int block = options.wire_type == DType::kQ8_0 ? 32 : 1;
  if (!is_wire_type(options.wire_type) || checkpoint.config.model_dim % block != 0) {
    return make_error(ErrorCode::kInvalidArgument, "activations of {} elements cannot travel as {}",
                      checkpoint.config.model_dim, to_string(options.wire_type));
  }
  const bool here = options.workers.empty() && options.join_at.empty();
  auto deployment = here ? deploy_here(checkpoint, options) : deploy_on_workers(checkpoint, options);
  // Weights that were packed while the file was written to are those of no model.
  if (deployment) BF_TRY(files_unchanged(checkpoint.path));
  return deployment;
}

}  // namespace butterfly
