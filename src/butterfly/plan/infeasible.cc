#include "butterfly/plan/infeasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "butterfly/base/units.h"

namespace butterfly {
namespace {

struct Holding {
  ShareBytes bytes;
  int layers = 0;
  std::string what;  // "0 to 3 and 8 to 11"
};

std::vector<Holding> holdings(const PlanningProblem& problem, std::span<const Share> shares) {
  std::vector<Holding> held(problem.cluster->nodes.size());
  for (const Share& share : shares) {
    Holding& own = held[static_cast<std::size_t>(share.node)];
    const ShareBytes bytes = share_bytes(problem.cost, share.work, problem.load);
    own.bytes.weights += bytes.weights;
    own.bytes.kv += bytes.kv;
    own.bytes.activations += bytes.activations;
    own.layers += share.work.layers();
    const std::string lanes = share.work.lanes.whole()
                                  ? ""
                                  : fmt::format(" (lanes {} to {})", share.work.lanes.first, share.work.lanes.last - 1);
    if (own.layers > 40 && own.what.size() > 40) continue;  // scattered layers: the first few tell enough
    own.what += fmt::format("{}{} to {}{}", own.what.empty() ? "" : " and ", share.work.first_layer,
                            share.work.last_layer - 1, lanes);
  }
  return held;
}

/// What the reader could change so that this share would fit.
std::string remedy(const PlanningProblem& problem, const Holding& held, std::uint64_t memory, std::uint64_t missing) {
  std::string text = fmt::format("{} more memory there", format_bytes(missing));
  const std::uint64_t rest = held.bytes.weights + held.bytes.activations;
  if (rest < memory) {
    const std::uint64_t context =
        static_cast<std::uint64_t>(static_cast<double>(memory - rest) / static_cast<double>(held.bytes.kv) *
                                   static_cast<double>(problem.load.context));
    if (context > 0) text += fmt::format(", a context of {} tokens", context);
  }
  const auto bits = [](DType type) { return static_cast<double>(row_bytes(type, 1024).value_or(4096)) / 1024.0; };
  const double smallest = static_cast<double>(held.bytes.weights) * bits(DType::kQ4_0) / bits(problem.cost.weight_type);
  const auto others = static_cast<double>(held.bytes.kv + held.bytes.activations);
  if (problem.cost.weight_type != DType::kQ4_0 && smallest + others <= static_cast<double>(memory)) {
    text += ", weights of a smaller type";
  }
  return text + " or more nodes would help";
}

}  // namespace

Status check_memory(const PlanningProblem& problem, std::span<const Share> shares) {
  const std::vector<Holding> held = holdings(problem, shares);
  int worst = -1;
  std::uint64_t most = 0;
  for (int node = 0; node < problem.nodes(); ++node) {
    const std::uint64_t memory = problem.cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
    const std::uint64_t needed = held[static_cast<std::size_t>(node)].bytes.total();
    if (memory == 0 || needed <= memory || needed - memory <= most) continue;
    worst = node;
    most = needed - memory;
  }
  if (worst < 0) return {};
  const Holding& own = held[static_cast<std::size_t>(worst)];
  const std::uint64_t memory = problem.cluster->nodes[static_cast<std::size_t>(worst)].memory_bytes;
  return make_error(ErrorCode::kNoMemory,
                    "{} has {} bytes of memory, layers {} with their cache need {}: {} bytes ({}) are missing; {}",
                    problem.cluster->name_of(worst), memory, own.what, memory + most, most, format_bytes(most),
                    remedy(problem, own, memory, most));
}

}  // namespace butterfly
