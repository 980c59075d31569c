#include "butterfly/infer/deployment/cluster_deployment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "butterfly/base/units.h"
#include "butterfly/infer/deployment/epoch_loop.h"
#include "butterfly/infer/deployment/membership_watch.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/plan/shares/share_groups.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/stage/stage_host.h"

namespace butterfly {
namespace {

constexpr std::int64_t kConnectTimeoutMs = 10'000;
constexpr std::int64_t kMeasureTimeoutMs = 30'000;
constexpr std::int64_t kStatsTimeoutMs = 5'000;

class ClusterDeployment final : public Deployment {
 public:
  ClusterDeployment(const Checkpoint& checkpoint, const DeploymentConfig& config, const DeploymentObserver& observer,
                    const std::stop_token& stop)
      : model_{.checkpoint = checkpoint,
               .config = config,
               .observer = observer,
               .stop = stop,
               .request = start_request(checkpoint, config.stage)},
        rebalancer_(model_),
        pipeline_({.output_dim = checkpoint.config.output_dim(),
                   .step_timeout = config.timeouts.step,
                   .before_step = [this] { return rebalancer_.before_step(); },
                   .recover = [this](const Error& cause) { return epochs_->recover(cause); }}) {}
  ~ClusterDeployment() override { rebalancer_.close(); }

  Status start() {
    const DeploymentConfig& config = model_.config;
    BF_ASSIGN_OR_RETURN(model_.request.model.hash, content_hash(model_.checkpoint.path));
    BF_ASSIGN_OR_RETURN(model_.request.model.bytes, content_bytes(model_.checkpoint.path));
    model_.request.stop = model_.stop;
    MembershipOptions membership = config.membership;
    membership.rebalance = [this] { return rebalancer_.rebalance(); };
    BF_ASSIGN_OR_RETURN(membership_, Membership::create(membership, after_ms(kConnectTimeoutMs), model_.stop));
    if (!membership.join_at.empty()) model_.say(fmt::format("workers may join at {}", membership_->join_address()));
    if (config.measure_links) {
      model_.say("measuring the links");
      model_.known.learn_links(*membership_, membership_->members(), membership.cluster.access,
                               after_ms(kMeasureTimeoutMs), model_.stop);
    }
    if (model_.observer.members) watch_.emplace(*membership_, model_.observer.members);
    epochs_.emplace(model_, *membership_, pipeline_, rebalancer_);
    BF_TRY(epochs_->begin({}));
    model_.context = running().plan.context;
    return {};
  }

  Pipeline& pipeline() override { return pipeline_; }
  const Plan& plan() const override { return running().plan; }
  std::vector<EpochReport> epochs() const override { return epochs_->reports(); }
  std::vector<StageWork> work() const override { return session() ? session()->work() : std::vector<StageWork>(); }
  Result<std::string> rebalance() override { return rebalancer_.rebalance(); }

  std::optional<RunForecast> forecast(const RunShape& run) const override {
    const PlanCluster cluster = with_exchanges(model_.known.cluster(running().members.nodes), running().plan,
                                               running().channels.exchange_times());
    auto prediction =
        butterfly::forecast(model_.checkpoint.config, cluster, running().plan, model_.config.plan.kv_type, run);
    if (!prediction || !std::isfinite(prediction->plan.token_s)) return std::nullopt;
    return *prediction;
  }

  std::string unpredictable(const RunShape& run) const override {
    const auto predicted = forecast(run);
    if (!predicted) return "not predicted: not every worker knows its speed";
    const std::string unmeasured = model_.known.unmeasured(running().members.nodes, predicted->plan.links);
    if (!unmeasured.empty() && !model_.config.measure_links) {
      return "not predicted: the links are not measured (--measure-links)";
    }
    if (!unmeasured.empty()) return fmt::format("not predicted: the link {} was not measured", unmeasured);
    constexpr double kShortS = 5e-3;  // a step of this length is long against what the system does meanwhile
    if (predicted->plan.token_s >= kShortS) return {};
    // Threads of workers beside us share cores, and each other's caches; of other hosts we do not know the cores.
    int threads = 0;
    std::set<int> here;
    for (const int node : running().plan.nodes()) {
      const NodeDescriptor& one = running().members.nodes[static_cast<std::size_t>(node)];
      if (on_loopback(one.address) && here.insert(node).second) threads += one.threads;
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

Result<Plan> plan_for(const Checkpoint& checkpoint, const PlanCluster& cluster, const PlanOptions& options) {
  if (options.strategy != "auto") return make_plan(checkpoint.config, cluster, options);
  // Where a speed is unknown, nothing can be compared.
  const auto slowless = std::ranges::find_if(cluster.nodes, [&](const NodeDescriptor& node) {
    return !node_rates(node, checkpoint.config.weight_type).known();
  });
  if (slowless == cluster.nodes.end()) return make_plan(checkpoint.config, cluster, options);
  PlanOptions planning = options;
  planning.strategy = "uniform";
  BF_ASSIGN_OR_RETURN(Plan plan, make_plan(checkpoint.config, cluster, planning));
  plan.note = fmt::format("split uniform, as the speed of {} is not known",
                          slowless->address.empty() ? slowless->name : slowless->address);
  return plan;
}

Result<Plan> DeployedModel::plan(const Members& members) const {
  if (members.nodes.empty()) return make_error(ErrorCode::kUnavailable, "no worker is left");
  PlanOptions planning = config.plan;
  if (context > 0) planning.context = context;
  return plan_for(checkpoint, known.cluster(members.nodes), planning);
}

void DeployedModel::say(const std::string& line) const {
  if (observer.progress && !line.empty()) observer.progress(line);
}

StartRequest start_request(const Checkpoint& checkpoint, const StageSettings& settings) {
  StartRequest request;
  request.model.name = checkpoint.config.name;
  request.config = checkpoint.config;
  request.settings = settings;
  request.weights = provide_weights(checkpoint.weights);
  return request;
}

Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentConfig& config,
                                                      const DeploymentObserver& observer, const std::stop_token& stop) {
  auto made = std::make_unique<ClusterDeployment>(checkpoint, config, observer, stop);
  BF_TRY(made->start());
  return std::unique_ptr<Deployment>(std::move(made));
}

}  // namespace butterfly
