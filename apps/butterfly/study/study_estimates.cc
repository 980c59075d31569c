#include "study/study_estimates.h"

#include <bit>
#include <set>

#include "butterfly/plan/cost/training_cost.h"

namespace butterfly::app {
namespace {

constexpr double kBits = 8.0;

struct RankLink {
  LinkDescriptor link{};
  std::string basis{};
};

std::string numbers_of(const LinkDescriptor& link) {
  return fmt::format("{:g} us and {:.3g} GB/s", link.latency_us, link.gb_per_s);
}

RankLink link_of_ranks(const study::RecordedRun& run, const LinkSpeed& said) {
  std::set<std::string> machines;
  double memory_gb_per_s = 0.0;
  for (const study::Process& process : run.processes) {
    if (process.number("ranks") <= 0.0) continue;
    machines.insert(process.fact("boot_id"));
    memory_gb_per_s = std::max(memory_gb_per_s, process.number("peak.memory_gb_per_s"));
  }
  const bool one_machine = machines.size() == 1 && memory_gb_per_s > 0.0;
  RankLink found{.link = one_machine ? memory_link(memory_gb_per_s) : kAssumedLink};
  if (said.latency_us > 0.0) found.link.latency_us = said.latency_us;
  if (said.gbit_per_s > 0.0) found.link.gb_per_s = said.gbit_per_s / kBits;
  found.basis = numbers_of(found.link);
  if (said.latency_us > 0.0 && said.gbit_per_s > 0.0) {
    found.basis += ", as the command line says";
  } else {
    found.basis += one_machine ? ", the machine's memory" : ", assumed";
  }
  return found;
}

/// Linear in bytes and messages, so that a sum is estimated by its sums; 0 where there is no formula.
double estimated_s(const study::LinkUse& use, int ranks, const LinkDescriptor& link) {
  const auto count = static_cast<double>(use.messages);
  if (count <= 0.0 || ranks < 2) return 0.0;
  const double half_s = count * ring_half_s(link, ranks, use.bytes / count);
  if (use.name == to_string(trace::Zone::kAllReduce)) return 2.0 * half_s;
  if (use.name == to_string(trace::Zone::kBroadcast)) {  // along a tree
    return count * std::bit_width(static_cast<unsigned>(ranks - 1)) * transfer_s(link, use.bytes / count);
  }
  const bool half = use.name == to_string(trace::Zone::kAllGather) ||
                    use.name == to_string(trace::Zone::kReduceScatter) || use.name == to_string(trace::Zone::kAllToAll);
  return half ? half_s : 0.0;
}

int ranks_of(const study::RecordedRun& run, const std::string& process) {
  for (const study::Process& one : run.processes) {
    if (one.name == process) return static_cast<int>(std::min(one.number("ranks"), 1e6));
  }
  return 0;
}

}  // namespace

void add_estimates(const study::RecordedRun& run, const LinkSpeed& said, study::Study& result) {
  const RankLink ranks = link_of_ranks(run, said);
  for (study::WorkloadStudy& work : result.workloads) {
    for (study::LinkUse& use : work.links) {
      use.estimate_s = estimated_s(use, ranks_of(run, use.process), ranks.link);
      if (use.estimate_s > 0.0) work.estimate_basis = ranks.basis;
    }
  }
}

}  // namespace butterfly::app
