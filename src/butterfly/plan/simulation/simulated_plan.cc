#include "butterfly/plan/simulation/simulated_plan.h"

#include <memory>
#include <span>

#include "butterfly/plan/cost/predict.h"

namespace butterfly {
namespace {

/// What the functions of a simulated pipeline look at; shared by them, since std::function is copied.
struct Tables {
  const PredictionInput& input;
  std::vector<Share> shares;
  std::vector<GroupRange> groups;

  std::span<const Share> group(int stage) const {
    const GroupRange& range = groups[static_cast<std::size_t>(stage)];
    return std::span(shares).subspan(range.begin, range.size());
  }
};

}  // namespace

SimulatedPipeline simulated(const PredictionInput& input, const Plan& plan) {
  std::vector<Share> shares = plan.placement();
  std::vector<GroupRange> groups = groups_of(shares);
  const auto tables = std::make_shared<const Tables>(Tables{input, std::move(shares), std::move(groups)});
  SimulatedPipeline pipeline;
  pipeline.nodes = input.cluster->size();
  pipeline.requests = input.load.requests;
  const int stages = static_cast<int>(tables->groups.size());
  for (int stage = 0; stage < stages; ++stage) {
    pipeline.stages.emplace_back();
    for (const Share& share : tables->group(stage)) pipeline.stages.back().push_back(share.node);
  }
  pipeline.compute_s = [tables](int stage, std::size_t member, const StepShape& step) {
    const Share& share = tables->group(stage)[member];
    return share_s(tables->input.cost, share.work, step, tables->input.rates[static_cast<std::size_t>(share.node)]);
  };
  pipeline.exchange_s = [tables](int stage, const StepShape& step) {
    return group_time(tables->input, tables->group(stage), step).exchange_s;
  };
  pipeline.message_bytes = [tables, stages](int hop, const StepShape& step) {
    const ModelCost& cost = tables->input.cost;
    if (hop == 0) return kTokenBytes * step.rows;
    if (hop < stages) return static_cast<double>(cost.row_bytes) * step.rows;
    return static_cast<double>(cost.logit_bytes) * step.logit_rows;
  };
  // As hop_s(): the receiver slept.
  pipeline.link = [tables](int from, int to) {
    LinkDescriptor link = tables->input.cluster->link(from, to);
    link.latency_us += link.wake_us;
    if (to != kCoordinator) link.latency_us += 1e6 * tables->input.rates[static_cast<std::size_t>(to)].wake_s;
    return link;
  };
  return pipeline;
}

}  // namespace butterfly
