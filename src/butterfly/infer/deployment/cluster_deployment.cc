#include "butterfly/infer/deployment/cluster_deployment.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/cluster/membership/membership.h"
#include "butterfly/infer/deployment/known_cluster.h"
#include "butterfly/infer/deployment/plan_change.h"
#include "butterfly/infer/deployment/rebalance_queue.h"
#include "butterfly/infer/deployment/straggler.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/core/config_json.h"
#include "butterfly/plan/cost/share_groups.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::int64_t kConnectTimeoutMs = 10'000;
constexpr std::int64_t kMeasureTimeoutMs = 30'000;
constexpr std::int64_t kStatsTimeoutMs = 5'000;
constexpr std::int64_t kBackAtStartMs = 1000;
constexpr std::int64_t kRetryPauseMs = 20;  // before the same members are tried again; doubled each time
constexpr int kAlikeMax = 2;                // epochs that fail over the same members before one of them is left out
constexpr int kFruitlessMax = 12;           // epochs in a row that computed nothing

DType kv_type_of(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  return options.kv_type.value_or(kv_type_for(checkpoint.config));
}

double seconds_since(std::uint64_t begin_ns) {
  return static_cast<double>(trace::now_ns() - begin_ns) * 1e-9;
}

class ClusterDeployment final : public Deployment, private Pipeline {
 public:
  static Result<std::unique_ptr<Deployment>> create(const Checkpoint& checkpoint, const DeploymentOptions& options) {
    std::unique_ptr<ClusterDeployment> made(new ClusterDeployment(checkpoint, options));
    made->request_ = start_request(checkpoint, options);
    BF_ASSIGN_OR_RETURN(made->request_.model.hash, content_hash(checkpoint.path));
    BF_ASSIGN_OR_RETURN(made->request_.model.bytes, content_bytes(checkpoint.path));
    made->request_.stop = options.stop;
    ClusterDeployment* self = made.get();  // outlives the membership, which it owns
    const MembershipOptions membership{.workers = options.workers,
                                       .join_at = options.join_at,
                                       .cluster = {.heartbeat = std::chrono::milliseconds(options.heartbeat_ms),
                                                   .dead_after = std::chrono::milliseconds(options.dead_after_ms),
                                                   .access = options.access},
                                       .rebalance = [self] { return self->wish_for_balance(); }};
    BF_ASSIGN_OR_RETURN(made->membership_, Membership::create(membership, after_ms(kConnectTimeoutMs)));
    if (!options.join_at.empty()) made->say(fmt::format("workers may join at {}", made->membership_->join_address()));
    if (options.measure_links) {
      made->say("measuring the links");
      made->known_.learn_links(*made->membership_, made->membership_->members(), options.access,
                               after_ms(kMeasureTimeoutMs));
    }
    BF_TRY(made->begin_epoch({}));
    return std::unique_ptr<Deployment>(std::move(made));
  }

  ~ClusterDeployment() override {
    wishes_.close();
    end_epoch();
  }

  Pipeline& pipeline() override { return *this; }
  const Plan& plan() const override { return plan_; }
  std::vector<EpochReport> epochs() const override { return epochs_; }

  std::optional<RunForecast> forecast(const RunShape& run) const override {
    const PlanCluster cluster = with_exchanges(known_.cluster(members_.nodes), plan_, ends_.exchange_times);
    auto prediction = butterfly::forecast(checkpoint_.config, cluster, plan_, kv_type_of(checkpoint_, options_), run);
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
    for (const int node : plan_.node_of_stage) {
      const NodeDescriptor& one = members_.nodes[static_cast<std::size_t>(node)];
      if (one.address.starts_with("127.") && here.insert(node).second) threads += one.threads;
    }
    const int cores = usable_threads();
    if (threads <= cores) return {};
    return fmt::format("not predicted: a step would take {}, and {} threads of {} workers share {} core{} here",
                       format_seconds(predicted->plan.token_s), threads, here.size(), cores, cores == 1 ? "" : "s");
  }

  std::vector<NodeReport> nodes() const override {
    std::vector<NodeReport> reports;
    const std::vector<StageWork> work = session_ ? session_->work() : std::vector<StageWork>{};
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      reports.push_back({node_of_stage(i).address, plan_.stages[i], ends_.memory_bytes[i], ends_.exchanges[i],
                         ends_.exchange_times[i], i < work.size() ? static_cast<double>(work[i].busy_ns) * 1e-9 : 0});
    }
    return reports;
  }

  std::uint64_t wire_bytes() const override { return ended_wire_bytes_ + traffic().bytes; }

  DataTraffic traffic() const override {
    return session_ ? session_->data_traffic(after_ms(kStatsTimeoutMs)).value_or(DataTraffic{}) : DataTraffic{};
  }

 private:
  ClusterDeployment(const Checkpoint& checkpoint, const DeploymentOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  // The pipeline of the epoch that runs.
  Status submit(Step step) override {
    if (membership_->version() != considered_) BF_TRY(consider_change());
    consider_wish();
    if (!preparation_) consider_straggler();
    if (preparation_ && preparation_->done) return make_error(ErrorCode::kUnavailable, "{}", preparation_->reason);
    return pipeline_->submit(std::move(step));
  }
  Result<Step> next() override {
    Result<Step> step = pipeline_->next();
    if (step) fruitless_ = 0;
    return step;
  }
  int depth() const override { return pipeline_stages(plan_.stages); }

  Status recover(const Error& cause) override {
    if (!ends_epoch(cause)) return tl::unexpected(cause);
    if (cause.code == ErrorCode::kTimeout) leave_out_complaining();  // it waited long enough for its neighbour
    return begin_epoch(cause);
  }

  /// Weights on their way to where the next epoch needs them, while this one runs.
  struct Preparation {
    std::string reason;
    std::unique_ptr<ClusterSession> session;
    std::stop_source stop;
    std::atomic<bool> done{false};
    std::jthread thread;
    ~Preparation() { stop.request_stop(); }
  };

  /// An error where another plan is better now and can begin at once; a preparation where it cannot.
  Status consider_change() {
    preparation_.reset();
    if (session_->failed()) return {};  // the pipeline will say so
    const Members members = membership_->members();
    const auto plan = plan_for(checkpoint_, known_.cluster(members.nodes), options_);
    considered_ = members.version;
    if (!plan) return {};  // whoever leaves cannot be replaced yet
    const auto same = [&] {
      if (plan->stages != plan_.stages) return false;
      for (std::size_t i = 0; i < plan->stages.size(); ++i) {
        const auto node = static_cast<std::size_t>(plan->node_of_stage[i]);
        if (members.nodes[node].address != node_of_stage(i).address) return false;
      }
      return true;
    };
    if (same()) return {};
    prepare(members, *plan, membership_->last_change());
    return {};
  }

  /// A preparation where stages turned out to be faster or slower than the plan assumed, and another plan helps.
  void consider_straggler() {
    const auto now = std::chrono::steady_clock::now();
    if (options_.split == "uniform" || options_.split == "sequential" || now < next_look_) return;
    next_look_ = now + std::chrono::milliseconds(options_.heartbeat_ms);
    const auto slowness = stragglers_.look(session_->work(), now);
    if (!slowness) return;
    std::map<int, double> needed_s;  // by each node of this plan, as it turned out
    double slowest_s = 0;
    std::size_t slowest = 0;
    for (std::size_t i = 0; i < slowness->size(); ++i) {
      double& needed = needed_s[plan_.node_of_stage[i]];
      needed += plan_.predictions[i].decode_s * (*slowness)[i];
      if (needed > slowest_s) slowest = i;
      slowest_s = std::max(slowest_s, needed);
    }
    const auto plan = plan_again(*slowness);
    constexpr double kWorthIt = 0.8;  // an epoch costs a replay
    if (!plan || plan->predicted_slowest_s() > kWorthIt * slowest_s) return;
    prepare(members_, *plan,
            fmt::format("worker {} needs {:.1f} times as long as planned; {}", node_of_stage(slowest).address,
                        (*slowness)[slowest], describe_change(plan_, *plan, members_.nodes)));
    // Twice as long each time: a node whose speed depends on its share would otherwise make plans follow each other.
    next_look_ = now + straggler_cooldown_;
    straggler_cooldown_ *= 2;
  }

  /// The plan for the same members with the speed that they show at work. `slowness` is relative to the plan that runs,
  /// whose own assumptions must not be counted again when nothing comes of this.
  Result<Plan> plan_again(std::span<const double> slowness) {
    for (std::size_t i = 0; i < slowness.size(); ++i) {
      known_.learn_slowness(node_of_stage(i).address, planned_slowness_[i] * slowness[i]);
    }
    return plan_for(checkpoint_, known_.cluster(members_.nodes), options_);
  }

  /// From a client's thread: waits until the plan has been looked at.
  Result<std::string> wish_for_balance() {
    constexpr std::chrono::milliseconds kPatience{15'000};
    if (options_.split == "uniform" || options_.split == "sequential") {
      return make_error(ErrorCode::kInvalidArgument,
                        "--split {} follows no measured times: there is nothing to balance (--split balanced does)",
                        options_.split);
    }
    return wishes_.ask(kPatience);
  }

  /// Somebody asks for a better plan now, however small the gain.
  void consider_wish() {
    if (!wishes_.wanted()) return;
    if (preparation_) return wishes_.answer(fmt::format("another plan is on its way: {}", preparation_->reason));
    const auto slowness = stragglers_.glance(session_->work());
    if (!slowness) return;  // after some more steps
    const auto plan = plan_again(*slowness);
    if (!plan) return wishes_.answer(tl::unexpected(plan.error()));
    if (plan->stages == plan_.stages && plan->node_of_stage == plan_.node_of_stage) {
      return wishes_.answer(std::string("nothing changes: the plan that runs is the best for the times measured now"));
    }
    const std::string change = describe_change(plan_, *plan, members_.nodes);
    prepare(members_, *plan, "asked to balance; " + change);
    wishes_.answer(change);
  }

  /// Nobody shall wait for weights that can be loaded beforehand. Whether that works or not, a new epoch follows.
  void prepare(const Members& members, const Plan& plan, const std::string& reason) {
    StartRequest request = request_;
    request.plan = plan;
    preparation_ = std::make_unique<Preparation>();
    preparation_->reason = reason;
    preparation_->session = membership_->next_epoch(members);
    request.epoch = membership_->epoch();
    request.purpose = Purpose::kPrepare;
    request.stop = preparation_->stop.get_token();
    preparation_->thread = std::jthread([this, &mine = *preparation_, asked = std::move(request)] {
      const auto prepared = mine.session->start(asked, after_ms(options_.ready_timeout_ms));
      if (!prepared) log().info("weights could not be loaded ahead: {}", prepared.error().message);
      mine.done = true;
    });
  }

  const NodeDescriptor& node_of_stage(std::size_t stage) const {
    return members_.nodes[static_cast<std::size_t>(plan_.node_of_stage[stage])];
  }

  void end_epoch() {
    preparation_.reset();
    if (!session_) return;
    ended_wire_bytes_ += ends_.input ? ends_.input->stats().bytes_sent + ends_.output->stats().bytes_received : 0;
    pipeline_.reset();
    session_->stop();
    ends_ = {};
    session_.reset();
  }

  /// Tries until an epoch runs, over whoever is there.
  Status begin_epoch(const std::optional<Error>& cause) {
    const std::uint64_t began_ns = trace::now_ns();
    std::string reason = cause ? cause->message : "";
    if (cause) say(reason);
    Deadline deadline = after_ms(options_.recover_within_ms);
    int alike = 0;
    for (;;) {
      end_epoch();
      if (options_.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled");
      if (++fruitless_ > kFruitlessMax) {
        return make_error(ErrorCode::kUnavailable, "{} epochs in a row came to nothing, the last because {}",
                          kFruitlessMax, reason);
      }
      members_ = membership_->members();
      considered_ = members_.version;
      const auto plan = plan_for_members();
      if (!plan) {
        BF_TRY(wait_for_workers(plan.error(), deadline));
        continue;
      }
      plan_ = *plan;
      planned_slowness_.clear();
      for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
        planned_slowness_.push_back(known_.slowness(node_of_stage(i).address));
      }
      const Status started = start();
      if (started) {
        stragglers_.watch(plan_, std::chrono::steady_clock::now());
        report(reason, began_ns);
        return {};
      }
      if (!ends_epoch(started.error())) return started;
      say(started.error().message);
      reason = started.error().message;
      deadline = after_ms(options_.recover_within_ms);
      alike = membership_->version() == members_.version ? alike + 1 : 0;
      if (alike > 0) retry_alike(alike);
    }
  }

  /// Workers that answer and yet cannot reach a neighbour: without them the others can work.
  void leave_out_complaining() {
    for (const std::string& address : session_->complaining()) membership_->leave_out(address);
  }

  /// The same members again: either the cause is gone in a moment, or one of them cannot reach another.
  void retry_alike(int times) {
    if (times >= kAlikeMax) leave_out_complaining();
    static_cast<void>(
        membership_->wait_for_change(members_.version, after_ms(kRetryPauseMs << std::min(times, 5)), options_.stop));
  }

  Result<Plan> plan_for_members() const {
    if (members_.nodes.empty()) return make_error(ErrorCode::kUnavailable, "no worker is left");
    return plan_for(checkpoint_, known_.cluster(members_.nodes), options_);
  }

  Status wait_for_workers(const Error& why, Deadline deadline) {
    const bool may_help = why.code == ErrorCode::kNoMemory || why.code == ErrorCode::kUnavailable;
    const bool first = epochs_.empty() && options_.join_at.empty();
    if (!may_help) return tl::unexpected(why);
    if (first) {
      // A start is strict. But who was lost right after the greeting, by damage on the way, is dialled again already.
      const bool lost = why.code == ErrorCode::kUnavailable && !std::exchange(waited_at_start_, true);
      const bool back = lost && membership_->wait_for_change(members_.version, after_ms(kBackAtStartMs), options_.stop);
      return back ? Status{} : tl::unexpected(why);
    }
    fruitless_ = 0;
    say(fmt::format("waiting for a worker: {}", why.message));
    if (membership_->wait_for_change(members_.version, deadline, options_.stop)) return {};
    if (options_.stop.stop_requested()) return make_error(ErrorCode::kCancelled, "cancelled");
    return make_error(why.code, "{}; no other worker came within {} s", why.message, options_.recover_within_ms / 1000);
  }

  Status start() {
    StartRequest request = request_;
    request.plan = plan_;
    session_ = membership_->next_epoch(members_);
    request.epoch = membership_->epoch();
    sent_weight_bytes_ = 0;
    request.progress = [this, last = std::string()](const StartProgress& progress) mutable {
      sent_weight_bytes_ = progress.weight_bytes;
      if (!epochs_.empty()) return;
      const std::string line = fmt::format("{} of {} workers ready, {} of weights sent", progress.ready,
                                           progress.stages, format_bytes(progress.weight_bytes));
      if (line != last) say(line);
      last = line;
    };
    BF_ASSIGN_OR_RETURN(ends_, session_->start(request, after_ms(options_.ready_timeout_ms)));
    ends_.input->compress({.mode = options_.compression});
    pipeline_ =
        make_channel_pipeline(*ends_.input, *ends_.output, {.depth = depth(), .vocab = checkpoint_.config.vocab});
    return {};
  }

  void report(const std::string& cause, std::uint64_t began_ns) {
    epochs_.push_back(
        {.epoch = membership_->epoch().value,
         .workers = static_cast<int>(std::set(plan_.node_of_stage.begin(), plan_.node_of_stage.end()).size()),
         .cause = cause,
         .ready_s = seconds_since(began_ns),
         .weight_bytes = sent_weight_bytes_});
    if (options_.split == "auto" && !plan_.note.empty() && members_.nodes.size() > 1) say(plan_.note);
    say(describe_idle());
    if (epochs_.size() > 1) {
      const EpochReport& one = epochs_.back();
      say(fmt::format("epoch {}: {} workers, ready after {}, {} of weights sent", one.epoch, one.workers,
                      format_seconds(one.ready_s), format_bytes(one.weight_bytes)));
    }
  }

  /// Who has no work, and why; empty where all do.
  std::string describe_idle() const {
    if (plan_.standby_nodes.empty()) return {};
    std::string names;
    for (const int node : plan_.standby_nodes) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", members_.nodes[static_cast<std::size_t>(node)].address);
    }
    const auto idle = plan_.standby_nodes.size();
    const std::string who = fmt::format("{} {} by", names, idle == 1 ? "stands" : "stand");
    DeploymentOptions all = options_;
    all.split = "uniform";
    const auto uniform = plan_for(checkpoint_, known_.cluster(members_.nodes), all);
    const bool by_choice = plan_.strategy != "uniform" && uniform && uniform->standby_nodes.size() < idle;
    if (!by_choice) {
      return fmt::format("{}: {} workers, {} layers", who, members_.nodes.size(), checkpoint_.config.layers);
    }
    const PlanPrediction& mine = plan_.prediction;
    const PlanPrediction& theirs = uniform->prediction;
    switch (options_.goal) {
      case PlanGoal::kLatency:
        return fmt::format("{}: a token is predicted to take {} without and {} with a uniform split over all", who,
                           format_seconds(mine.token_s), format_seconds(theirs.token_s));
      case PlanGoal::kThroughput:
        return fmt::format("{}: {:.1f} tokens/s are predicted without and {:.1f} with a uniform split over all", who,
                           mine.tokens_per_s, theirs.tokens_per_s);
      case PlanGoal::kMemory:
        break;
    }
    return fmt::format("{}: the fullest node holds {} without and {} with a uniform split over all", who,
                       format_bytes(mine.memory_bytes_max), format_bytes(theirs.memory_bytes_max));
  }

  void say(const std::string& line) const {
    if (options_.progress && !line.empty()) options_.progress(line);
  }

  const Checkpoint checkpoint_;
  const DeploymentOptions options_;
  StartRequest request_;   // all but the plan and the epoch
  RebalanceQueue wishes_;  // outlives the membership, whose status_server wait there
  std::unique_ptr<Membership> membership_;
  Members members_;               // of the epoch that runs
  std::uint64_t considered_ = 0;  // the version of the membership that was last looked at
  Plan plan_;
  std::unique_ptr<ClusterSession> session_;  // gone before the membership
  PipelineChannels ends_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Preparation> preparation_;
  StragglerDetector stragglers_;
  Deadline next_look_{};
  std::chrono::seconds straggler_cooldown_{20};  // after another plan because of a straggler
  KnownCluster known_;
  std::vector<double> planned_slowness_;  // of each stage, when the plan that runs was made
  std::vector<EpochReport> epochs_;
  int fruitless_ = 0;  // epochs since a step last came back
  bool waited_at_start_ = false;
  std::uint64_t sent_weight_bytes_ = 0;
  std::uint64_t ended_wire_bytes_ = 0;
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

StartRequest start_request(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  StartRequest request;
  request.model.name = checkpoint.config.name;
  request.config = to_json(checkpoint.config);
  request.options = to_json(StageSettings{
      .kv_type = kv_type_of(checkpoint, options), .wire_type = options.wire_type, .compression = options.compression});
  request.weights = provide_weights(checkpoint.weights);
  return request;
}

Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  return ClusterDeployment::create(checkpoint, options);
}

}  // namespace butterfly
