#include "butterfly/infer/deployment/cluster_deployment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "butterfly/base/units.h"
#include "butterfly/infer/deployment/epoch_loop.h"
#include "butterfly/infer/deployment/membership_watch.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/plan/partition/share_groups.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/stage/stage_host.h"

namespace butterfly {
namespace {

constexpr std::int64_t kConnectTimeoutMs = 10'000;
constexpr std::int64_t kMeasureTimeoutMs = 30'000;
constexpr std::int64_t kStatsTimeoutMs = 5'000;

DType kv_type_of(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  return options.kv_type.value_or(kv_type_for(checkpoint.config));
}

class ClusterDeployment final : public Deployment {
 public:
  ClusterDeployment(const Checkpoint& checkpoint, const DeploymentOptions& options)
      : model_{.checkpoint = checkpoint, .options = options, .request = start_request(checkpoint, options)},
        rebalancer_(model_),
        pipeline_({.vocab = checkpoint.config.vocab,
                   .step_timeout_ms = options.step_timeout_ms,
                   .before_step = [this] { return rebalancer_.before_step(); },
                   .recover = [this](const Error& cause) { return epochs_->recover(cause); }}) {}
  ~ClusterDeployment() override { rebalancer_.close(); }

  Status start() {
    const DeploymentOptions& options = model_.options;
    BF_ASSIGN_OR_RETURN(model_.request.model.hash, content_hash(model_.checkpoint.path));
    BF_ASSIGN_OR_RETURN(model_.request.model.bytes, content_bytes(model_.checkpoint.path));
    model_.request.stop = options.stop;
    const MembershipOptions membership{.workers = options.workers,
                                       .join_at = options.join_at,
                                       .cluster = {.heartbeat = std::chrono::milliseconds(options.heartbeat_ms),
                                                   .dead_after = std::chrono::milliseconds(options.dead_after_ms),
                                                   .access = options.access},
                                       .rebalance = [this] { return rebalancer_.rebalance(); }};
    BF_ASSIGN_OR_RETURN(membership_, Membership::create(membership, after_ms(kConnectTimeoutMs)));
    if (!options.join_at.empty()) model_.say(fmt::format("workers may join at {}", membership_->join_address()));
    if (options.measure_links) {
      model_.say("measuring the links");
      model_.known.learn_links(*membership_, membership_->members(), options.access, after_ms(kMeasureTimeoutMs),
                               options.stop);
    }
    if (options.observer.members) watch_.emplace(*membership_, options.observer.members);
    epochs_.emplace(model_, *membership_, pipeline_, rebalancer_);
    return epochs_->begin({});
  }

  Pipeline& pipeline() override { return pipeline_; }
  const Plan& plan() const override { return running().plan; }
  std::vector<EpochReport> epochs() const override { return epochs_->reports(); }
  std::vector<StageWork> work() const override { return session() ? session()->work() : std::vector<StageWork>(); }
  Result<std::string> rebalance() override { return rebalancer_.rebalance(); }

  std::optional<RunForecast> forecast(const RunShape& run) const override {
    const PlanCluster cluster = with_exchanges(model_.known.cluster(running().members.nodes), running().plan,
                                               running().channels.exchange_times());
    const DType kv_type = kv_type_of(model_.checkpoint, model_.options);
    auto prediction = butterfly::forecast(model_.checkpoint.config, cluster, running().plan, kv_type, run);
    if (!prediction || !std::isfinite(prediction->plan.token_s)) return std::nullopt;
    return *prediction;
  }

  std::string unpredictable(const RunShape& run) const override {
    const auto predicted = forecast(run);
    if (!predicted) return "not predicted: not every worker knows its speed";
    constexpr double kShortS = 5e-3;  // a step of this length is long against what the system does meanwhile
    if (predicted->plan.token_s >= kShortS) return {};
    // Threads of workers beside us share cores, and each other's caches; of other hosts we do not know the cores.
    int threads = 0;
    std::set<int> here;
    for (const int node : running().plan.nodes()) {
      const NodeDescriptor& one = running().members.nodes[static_cast<std::size_t>(node)];
      if (one.address.starts_with("127.") && here.insert(node).second) threads += one.threads;
    }
    const int cores = usable_threads();
    if (threads <= cores) return {};
    return fmt::format("not predicted: a step would take {}, and {} threads of {} workers share {} core{} here",
                       format_seconds(predicted->plan.token_s), threads, here.size(), cores, cores == 1 ? "" : "s");
  }

  std::vector<NodeReport> nodes() const override {
    std::vector<NodeReport> reports;
    if (!session()) return reports;  // too few workers were left
    const std::vector<StageWork> done = work();
    for (std::size_t i = 0; i < running().plan.shares.size(); ++i) {
      const ReadyShare& ready = running().channels.shares[i];
      reports.push_back({running().node_of_stage(i).address, running().plan.shares[i].work, ready.memory_bytes,
                         ready.exchange, ready.times,
                         i < done.size() ? static_cast<double>(done[i].busy_ns) * 1e-9 : 0});
    }
    return reports;
  }

  std::uint64_t wire_bytes() const override { return epochs_->ended_wire_bytes() + traffic().bytes; }

  DataTraffic traffic() const override {
    return session() ? session()->data_traffic(after_ms(kStatsTimeoutMs)).value_or(DataTraffic{}) : DataTraffic{};
  }

 private:
  const RunningEpoch& running() const { return epochs_->running(); }
  ClusterSession* session() const { return running().session.get(); }

  DeployedModel model_;
  Rebalancer rebalancer_;  // outlives the membership, whose status server waits there
  ChannelPipeline pipeline_;
  std::unique_ptr<Membership> membership_;
  std::optional<EpochLoop> epochs_;       // gone before the membership
  std::optional<MembershipWatch> watch_;  // last: gone before what it tells of
};

}  // namespace

Result<Plan> plan_for(const Checkpoint& checkpoint, const PlanCluster& cluster, const DeploymentOptions& options) {
  PlanOptions planning{.strategy = options.split,
                       .sequences = options.sequences,
                       .kv_type = kv_type_of(checkpoint, options),
                       .goal = options.goal,
                       .custom = options.custom};
  if (options.split != "auto") return make_plan(checkpoint.config, cluster, planning);
  // Where a speed is unknown, nothing can be compared.
  const auto slowless = std::ranges::find_if(cluster.nodes, [&](const NodeDescriptor& node) {
    return !node_rates(node, checkpoint.config.weight_type).known();
  });
  if (slowless == cluster.nodes.end()) return make_plan(checkpoint.config, cluster, planning);
  planning.strategy = "uniform";
  BF_ASSIGN_OR_RETURN(Plan plan, make_plan(checkpoint.config, cluster, planning));
  plan.note = fmt::format("split uniform, as the speed of {} is not known",
                          slowless->address.empty() ? slowless->name : slowless->address);
  return plan;
}

Result<Plan> DeployedModel::plan(const Members& members) const {
  if (members.nodes.empty()) return make_error(ErrorCode::kUnavailable, "no worker is left");
  return plan_for(checkpoint, known.cluster(members.nodes), options);
}

void DeployedModel::say(const std::string& line) const {
  if (options.progress && !line.empty()) options.progress(line);
}

StartRequest start_request(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  StartRequest request;
  request.model.name = checkpoint.config.name;
  request.config = checkpoint.config;
  request.settings = {
      .kv_type = kv_type_of(checkpoint, options), .wire_type = options.wire_type, .compression = options.compression};
  request.weights = provide_weights(checkpoint.weights);
  return request;
}

Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  auto made = std::make_unique<ClusterDeployment>(checkpoint, options);
  BF_TRY(made->start());
  return std::unique_ptr<Deployment>(std::move(made));
}

}  // namespace butterfly
