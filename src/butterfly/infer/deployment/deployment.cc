#include "butterfly/infer/deployment/deployment.h"

#include <mutex>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/infer/deployment/cluster_deployment.h"
#include "butterfly/kernel/rates/matmul_rates.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/plan/shares/share_groups.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

Result<Isa> isa_of_node(const ComputeConfig& compute, std::size_t node) {
  if (compute.isas.empty()) return choose_isa();
  return compute.isas[node % compute.isas.size()];
}

/// Every layer on the caller's thread.
class LocalDeployment final : public Deployment {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const Plan& plan,
                                                    const ComputeConfig& compute, const DeploymentObserver& observer,
                                                    const std::stop_token& stop) {
    BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(compute, 0));
    StageParts parts(compute.packed_folder);
    parts.set_model(checkpoint.stamp, checkpoint.config);
    const auto source = [&]() -> Result<std::shared_ptr<const WeightSource>> { return checkpoint.weights; };
    BF_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                        Stage::load(checkpoint.config, plan.shares[0].work, source,
                                    {.threads = compute.threads, .isa = isa, .kv_type = compute.kv_type}, parts,
                                    {.stop = stop, .progress = observer.loading}));
    trace::set_fact("model.bytes", static_cast<double>(stage->weight_bytes()));
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
                                                    std::vector<InprocNode> nodes, const DeploymentConfig& config) {
    std::unique_ptr<ThreadsDeployment> made(new ThreadsDeployment(plan, std::move(hosts), std::move(nodes)));
    BF_TRY(made->start(checkpoint, config));
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

  Status start(const Checkpoint& checkpoint, const DeploymentConfig& config) {
    StartRequest request = start_request(checkpoint, config.stage);
    request.plan = plan_;
    BF_ASSIGN_OR_RETURN(ends_, session_->start(request, after_ms(config.timeouts.ready.count())));
    pipeline_.emplace(
        ChannelPipelineOptions{.output_dim = checkpoint.config.output_dim(), .step_timeout = config.timeouts.step});
    pipeline_->connect(*ends_.input, *ends_.output, pipeline_stages(plan_.stages()));
    return {};
  }

  Plan plan_;
  std::vector<std::unique_ptr<StageHost>> hosts_;
  std::unique_ptr<ClusterSession> session_;
  PipelineChannels ends_;
  std::optional<ChannelPipeline> pipeline_;
};

/// What the nodes of a process have loaded, together.
class LoadingNodes {
 public:
  LoadingNodes(std::size_t nodes, const DeploymentObserver& observer) : nodes_(nodes), tell_(observer.loading) {}

  void tell(std::size_t node, const LoadProgress& progress) {
    const std::lock_guard lock(mutex_);
    nodes_[node] = progress;
    LoadProgress all;
    for (const LoadProgress& one : nodes_) {
      all.done += one.done;
      all.packed_bytes += one.packed_bytes;
    }
    all.done /= static_cast<double>(nodes_.size());
    tell_(all);
  }

 private:
  std::mutex mutex_;
  std::vector<LoadProgress> nodes_;
  const std::function<void(const LoadProgress& progress)> tell_;
};

Result<std::unique_ptr<Deployment>> deploy_here(const Checkpoint& checkpoint, const DeploymentConfig& config,
                                                const DeploymentObserver& observer, const std::stop_token& stop) {
  // The nodes are alike, so no split depends on their speed; together they have the memory of one process.
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  NodeDescriptor node;
  node.threads = config.compute.threads;
  node.memory_bytes = topology.available_memory_bytes / static_cast<std::uint64_t>(config.nodes);
  node.memory_read_gb_per_s = node.fp32_gflops = 1.0;
  std::vector<NodeDescriptor> nodes(static_cast<std::size_t>(config.nodes), node);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].name = fmt::format("node {}", i);
  PlanOptions planning = config.plan;
  if (planning.strategy == "auto") {
    planning.strategy = "uniform";
    if (observer.progress && config.nodes > 1)
      observer.progress("split uniform, as the nodes of one process are alike");
  }
  BF_ASSIGN_OR_RETURN(const Plan plan, plan_for(checkpoint, cluster_of(nodes), planning));
  if (config.nodes == 1 && plan.shares.size() == 1)
    return LocalDeployment::create(checkpoint, plan, config.compute, observer, stop);
  if (observer.progress && !plan.standby_nodes.empty()) {
    observer.progress(fmt::format("{} of {} nodes stand by: the model has {} layers", plan.standby_nodes.size(),
                                  config.nodes, checkpoint.config.layers));
  }
  const auto loading = std::make_shared<LoadingNodes>(nodes.size(), observer);  // also the hosts'
  std::vector<std::unique_ptr<StageHost>> hosts;
  std::vector<InprocNode> members;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    BF_ASSIGN_OR_RETURN(const Isa isa, isa_of_node(config.compute, i));
    StageHostOptions host{.threads = config.compute.threads,
                          .isa = isa,
                          .packed_folder = config.compute.packed_folder,
                          .model_stamp = checkpoint.stamp};
    if (observer.loading) host.progress = [loading, i](const LoadProgress& progress) { loading->tell(i, progress); };
    hosts.push_back(std::make_unique<StageHost>(host));
    members.push_back({nodes[i], hosts.back().get()});
  }
  return ThreadsDeployment::create(checkpoint, plan, std::move(hosts), std::move(members), config);
}

/// Measured, or remembered from before; a recording without them says less.
void set_facts_of_this_node(const ComputeConfig& compute) {
  const auto isa = isa_of_node(compute, 0);
  const auto matmuls = [](Isa wanted, int threads, const std::string& cpu_name) {
    return remembered_matmuls(wanted, threads, cpu_name);
  };
  if (!isa) return;
  trace::set_recording(false);  // the measurement is no part of the run
  const auto node = measure_node({.isa = *isa, .threads = compute.threads, .matmuls = matmuls});
  trace::set_recording(true);
  if (node) set_facts(*node);
}

}  // namespace

Result<std::unique_ptr<Deployment>> Deployment::create(const Checkpoint& checkpoint, const DeploymentConfig& config,
                                                       const DeploymentObserver& observer,
                                                       const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(const DeploymentConfig decided, resolved(config, checkpoint.config));
  set_facts(checkpoint.config);
  if (!decided.is_here()) trace::set_fact("node", std::string("coordinator"));
  if (trace::recording() && decided.is_here()) {
    if (observer.progress) observer.progress("this machine's speed, for the recording: measured once, some seconds");
    set_facts_of_this_node(decided.compute);
  }
  auto deployment = decided.is_here() ? deploy_here(checkpoint, decided, observer, stop)
                                      : deploy_on_workers(checkpoint, decided, observer, stop);
  // Weights that were packed while the file was written to are those of no model.
  if (deployment) BF_TRY(checkpoint_unchanged(checkpoint.path));
  const int own = checkpoint.config.context;
  if (deployment && observer.progress && config.plan.context == 0 && (*deployment)->plan().context < own) {
    observer.progress(fmt::format("a context of {} tokens, as the model's {} do not fit into memory",
                                  (*deployment)->plan().context, own));
  }
  return deployment;
}

}  // namespace butterfly
