#include "butterfly/infer/deployment/rebalancer.h"

#include <algorithm>
#include <map>

#include "butterfly/base/log.h"
#include "butterfly/infer/deployment/plan_change.h"

namespace butterfly {

void Rebalancer::watch(const RunningEpoch& epoch, Membership& membership) {
  epoch_ = &epoch;
  membership_ = &membership;
  considered_ = epoch.members.version;
  stragglers_.watch(epoch.plan, std::chrono::steady_clock::now());
}

void Rebalancer::drop() {
  preparation_.reset();
  epoch_ = nullptr;
}

Status Rebalancer::before_step() {
  if (epoch_ == nullptr) return {};
  if (membership_->version() != considered_) consider_change();
  consider_wish();
  if (!preparation_) consider_straggler();
  if (preparation_ && preparation_->done) return make_error(ErrorCode::kUnavailable, "{}", preparation_->reason);
  return {};
}

bool Rebalancer::follows_times() const {
  const std::string& strategy = model_.config.plan.strategy;
  return strategy != "uniform" && strategy != "sequential";
}

/// A preparation where another plan is better for the members that there are now.
void Rebalancer::consider_change() {
  preparation_.reset();
  if (epoch_->session->failed()) return;  // the pipeline will say so
  const Members members = membership_->members();
  considered_ = members.version;
  const auto plan = model_.plan(members);
  if (!plan) return;  // a worker that leaves cannot be replaced yet
  const auto same = [&] {
    if (plan->stages() != epoch_->plan.stages()) return false;
    for (std::size_t i = 0; i < plan->shares.size(); ++i) {
      const auto node = static_cast<std::size_t>(plan->shares[i].node);
      if (members.nodes[node].address != epoch_->node_of_stage(i).address) return false;
    }
    return true;
  };
  if (!same()) prepare(members, *plan, membership_->last_change());
}

/// A preparation where stages turned out to be faster or slower than the plan assumed, and another plan helps.
void Rebalancer::consider_straggler() {
  const auto now = std::chrono::steady_clock::now();
  if (!follows_times() || now < next_look_) return;
  next_look_ = now + model_.config.membership.cluster.heartbeat;
  const auto slowness = stragglers_.look(epoch_->session->work(), now);
  if (!slowness) return;
  const Plan& running = epoch_->plan;
  std::map<int, double> needed_s;  // by each node of this plan, as it turned out
  double slowest_s = 0;
  std::size_t slowest = 0;
  for (std::size_t i = 0; i < slowness->size(); ++i) {
    double& needed = needed_s[running.shares[i].node];
    needed += running.shares[i].prediction.decode_s * (*slowness)[i];
    if (needed > slowest_s) slowest = i;
    slowest_s = std::max(slowest_s, needed);
  }
  const auto plan = plan_again(*slowness);
  constexpr double kWorthIt = 0.8;  // an epoch costs a replay
  if (!plan || plan->predicted_slowest_s() > kWorthIt * slowest_s) return;
  prepare(epoch_->members, *plan,
          fmt::format("worker {} needs {:.1f} times as long as planned; {}", epoch_->node_of_stage(slowest).address,
                      (*slowness)[slowest], describe_change(running, *plan, epoch_->members.nodes)));
  // Twice as long each time: a node whose speed depends on its share would otherwise make plans follow each other.
  next_look_ = now + straggler_cooldown_;
  straggler_cooldown_ *= 2;
}

/// The plan for the same members with the speed that they show at work. `slowness` is relative to the plan that runs,
/// whose own assumptions must not be counted again when nothing comes of this.
Result<Plan> Rebalancer::plan_again(std::span<const double> slowness) {
  for (std::size_t i = 0; i < slowness.size(); ++i) {
    model_.known.learn_slowness(epoch_->node_of_stage(i).address, epoch_->planned_slowness[i] * slowness[i]);
  }
  return model_.plan(epoch_->members);
}

Result<std::string> Rebalancer::rebalance() {
  constexpr std::chrono::milliseconds kPatience{15'000};
  if (!follows_times()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--split {} follows no measured times: there is nothing to balance (--split balanced does)",
                      model_.config.plan.strategy);
  }
  return wishes_.ask(kPatience);
}

/// A client asks for a better plan now, however small the gain.
void Rebalancer::consider_wish() {
  if (!wishes_.wanted()) return;
  if (preparation_) return wishes_.answer(fmt::format("another plan is on its way: {}", preparation_->reason));
  const auto slowness = stragglers_.glance(epoch_->session->work());
  if (!slowness) return;  // after some more steps
  const auto plan = plan_again(*slowness);
  if (!plan) return wishes_.answer(tl::unexpected(plan.error()));
  if (plan->placement() == epoch_->plan.placement()) {
    return wishes_.answer(std::string("nothing changes: the plan that runs is the best for the times measured now"));
  }
  const std::string change = describe_change(epoch_->plan, *plan, epoch_->members.nodes);
  prepare(epoch_->members, *plan, "asked to balance; " + change);
  wishes_.answer(change);
}

/// Loads beforehand what would otherwise be waited for. Whether that works or not, a new epoch follows.
void Rebalancer::prepare(const Members& members, const Plan& plan, const std::string& reason) {
  StartRequest request = model_.request;
  request.plan = plan;
  preparation_ = std::make_unique<Preparation>();
  preparation_->reason = reason;
  preparation_->session = membership_->next_epoch(members);
  request.epoch = membership_->epoch();
  request.purpose = Purpose::kPrepare;
  request.stop = preparation_->stop.get_token();
  preparation_->thread = std::jthread(
      [timeout_ms = model_.config.timeouts.ready.count(), &mine = *preparation_, asked = std::move(request)] {
        const auto prepared = mine.session->start(asked, after_ms(timeout_ms));
        if (!prepared) log().info("weights could not be loaded ahead: {}", prepared.error().message);
        mine.done = true;
      });
}

}  // namespace butterfly
