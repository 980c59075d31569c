#include "butterfly/infer/cluster_deployment.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/cluster/membership.h"
#include "butterfly/model/config_json.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::int64_t kConnectTimeoutMs = 10'000;
constexpr std::int64_t kStatsTimeoutMs = 5'000;
constexpr std::int64_t kRetryPauseMs = 20;  // before the same members are tried again; doubled each time
constexpr int kAlikeMax = 3;                // epochs that fail over the same members before one of them is left out
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
    const MembershipOptions membership{.workers = options.workers,
                                       .join_at = options.join_at,
                                       .cluster = {.heartbeat = std::chrono::milliseconds(options.heartbeat_ms),
                                                   .dead_after = std::chrono::milliseconds(options.dead_after_ms),
                                                   .access = options.access}};
    BF_ASSIGN_OR_RETURN(made->membership_, Membership::create(membership, after_ms(kConnectTimeoutMs)));
    if (!options.join_at.empty()) made->say(fmt::format("workers may join at {}", made->membership_->join_address()));
    BF_TRY(made->begin_epoch({}));
    return std::unique_ptr<Deployment>(std::move(made));
  }

  ~ClusterDeployment() override { end_epoch(); }

  Pipeline& pipeline() override { return *this; }
  const Plan& plan() const override { return plan_; }
  std::vector<EpochReport> epochs() const override { return epochs_; }

  std::vector<NodeReport> nodes() const override {
    std::vector<NodeReport> reports;
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      reports.push_back({node_of_stage(i).address, plan_.stages[i], ends_.memory_bytes[i]});
    }
    return reports;
  }

  std::uint64_t wire_bytes() const override {
    return ended_wire_bytes_ + (session_ ? session_->data_bytes(after_ms(kStatsTimeoutMs)).value_or(0) : 0);
  }

 private:
  ClusterDeployment(const Checkpoint& checkpoint, const DeploymentOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  // The pipeline of the epoch that runs.
  Status submit(Step step) override {
    if (membership_->version() != considered_) BF_TRY(consider_change());
    return pipeline_->submit(std::move(step));
  }
  Result<Step> next() override {
    Result<Step> step = pipeline_->next();
    if (step) fruitless_ = 0;
    return step;
  }
  int depth() const override { return static_cast<int>(plan_.stages.size()); }

  Status recover(const Error& cause) override {
    if (!ends_epoch(cause)) return tl::unexpected(cause);
    return begin_epoch(cause);
  }

  /// An error where another plan is better now, because somebody joined or wants to leave.
  Status consider_change() {
    const Members members = membership_->members();
    const auto plan = plan_for(checkpoint_, members.nodes, options_);
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
    return make_error(ErrorCode::kUnavailable, "{}", membership_->last_change());
  }

  const NodeDescriptor& node_of_stage(std::size_t stage) const {
    return members_.nodes[static_cast<std::size_t>(plan_.node_of_stage[stage])];
  }

  void end_epoch() {
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
      const Status started = start();
      if (started) {
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

  /// The same members again: either the cause is gone in a moment, or one of them cannot reach another.
  void retry_alike(int times) {
    if (times >= kAlikeMax) {
      for (const std::string& address : session_->complaining()) membership_->leave_out(address);
    }
    static_cast<void>(
        membership_->wait_for_change(members_.version, after_ms(kRetryPauseMs << std::min(times, 5)), options_.stop));
  }

  Result<Plan> plan_for_members() const {
    if (members_.nodes.empty()) return make_error(ErrorCode::kUnavailable, "no worker is left");
    return plan_for(checkpoint_, members_.nodes, options_);
  }

  Status wait_for_workers(const Error& why, Deadline deadline) {
    const bool may_help = why.code == ErrorCode::kNoMemory || why.code == ErrorCode::kUnavailable;
    const bool first = epochs_.empty() && options_.join_at.empty();
    if (!may_help || first) return tl::unexpected(why);
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
    pipeline_ =
        make_channel_pipeline(*ends_.input, *ends_.output, {.depth = depth(), .vocab = checkpoint_.config.vocab});
    return {};
  }

  void report(const std::string& cause, std::uint64_t began_ns) {
    epochs_.push_back({.epoch = membership_->epoch().value,
                       .workers = static_cast<int>(plan_.stages.size()),
                       .cause = cause,
                       .ready_s = seconds_since(began_ns),
                       .weight_bytes = sent_weight_bytes_});
    for (const int node : plan_.standby_nodes) {
      say(fmt::format("{} stands by: {} workers, {} layers", members_.nodes[static_cast<std::size_t>(node)].address,
                      members_.nodes.size(), checkpoint_.config.layers));
    }
    if (epochs_.size() > 1) {
      const EpochReport& one = epochs_.back();
      say(fmt::format("epoch {}: {} workers, ready after {}, {} of weights sent", one.epoch, one.workers,
                      format_seconds(one.ready_s), format_bytes(one.weight_bytes)));
    }
  }

  void say(const std::string& line) const {
    if (options_.progress && !line.empty()) options_.progress(line);
  }

  const Checkpoint checkpoint_;
  const DeploymentOptions options_;
  StartRequest request_;  // all but the plan and the epoch
  std::unique_ptr<Membership> membership_;
  Members members_;               // of the epoch that runs
  std::uint64_t considered_ = 0;  // the version of the membership that was last looked at
  Plan plan_;
  std::unique_ptr<ClusterSession> session_;  // gone before the membership
  PipelineEnds ends_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<EpochReport> epochs_;
  int fruitless_ = 0;  // epochs since a step last came back
  std::uint64_t sent_weight_bytes_ = 0;
  std::uint64_t ended_wire_bytes_ = 0;
};

}  // namespace

Result<Plan> plan_for(const Checkpoint& checkpoint, std::span<const NodeDescriptor> nodes,
                      const DeploymentOptions& options) {
  return make_plan(
      checkpoint.config, nodes,
      {.strategy = options.split, .sequences = options.sequences, .kv_type = kv_type_of(checkpoint, options)});
}

StartRequest start_request(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  StartRequest request;
  request.model.name = checkpoint.config.name;
  request.config = to_json(checkpoint.config);
  request.options = to_json(StageSettings{kv_type_of(checkpoint, options)});
  request.weights = provide_weights(checkpoint.weights);
  return request;
}

Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentOptions& options) {
  return ClusterDeployment::create(checkpoint, options);
}

}  // namespace butterfly
