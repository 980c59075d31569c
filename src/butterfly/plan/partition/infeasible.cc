#include "butterfly/plan/partition/infeasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "butterfly/base/units.h"
#include "butterfly/kernel/packed/packed_matrix.h"

namespace butterfly {
namespace {

/// "0 to 3 and 8 to 11 (slices 0 to 4)"; the first few of many.
std::string layers_on(int node, std::span<const Share> shares) {
  constexpr std::size_t kLong = 40;
  std::string text;
  for (const Share& share : shares) {
    if (share.node != node) continue;
    if (text.size() > kLong) return text + " and others";
    const StageAssignment& work = share.work;
    text += fmt::format("{}{} to {}", text.empty() ? "" : " and ", work.first_layer, work.last_layer - 1);
    if (!work.slices.whole()) text += fmt::format(" ({})", work.slices.text());
  }
  return text;
}

/// What the reader could change so that this share would fit.
std::string remedy(const PlanningProblem& problem, const ShareBytes& held, std::uint64_t memory,
                   std::uint64_t missing) {
  std::string text = fmt::format("{} more memory there", format_bytes(missing));
  const std::uint64_t rest = held.weights + held.activations;
  if (rest < memory) {
    const std::uint64_t context = static_cast<std::uint64_t>(
        static_cast<double>(memory - rest) / static_cast<double>(held.kv) * static_cast<double>(problem.load.context));
    if (context > 0) text += fmt::format(", a context of {} tokens", context);
  }
  const auto bits = [](DType type) { return static_cast<double>(packed_row_bytes(type, 1024)) / 1024.0; };
  const double smallest = static_cast<double>(held.weights) * bits(DType::kQ4_0) / bits(problem.cost.weight_type);
  const auto others = static_cast<double>(held.kv + held.activations);
  if (problem.cost.weight_type != DType::kQ4_0 && smallest + others <= static_cast<double>(memory)) {
    text += ", weights of a smaller type";
  }
  return text + " or more nodes would help";
}

}  // namespace

Status check_memory(const PlanningProblem& problem, std::span<const Share> shares) {
  const std::vector<ShareBytes> held = node_bytes(problem, shares);
  int worst = -1;
  std::uint64_t most = 0;
  for (int node = 0; node < problem.nodes(); ++node) {
    const std::uint64_t memory = problem.cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
    const std::uint64_t needed = held[static_cast<std::size_t>(node)].total();
    if (memory == 0 || needed <= memory || needed - memory <= most) continue;
    worst = node;
    most = needed - memory;
  }
  if (worst < 0) return {};
  const std::uint64_t memory = problem.cluster->nodes[static_cast<std::size_t>(worst)].memory_bytes;
  return make_error(ErrorCode::kNoMemory,
                    "{} has {} bytes of memory, layers {} with their cache need {}: {} bytes ({}) are missing; {}",
                    problem.cluster->name_of(worst), memory, layers_on(worst, shares), memory + most, most,
                    format_bytes(most), remedy(problem, held[static_cast<std::size_t>(worst)], memory, most));
}

}  // namespace butterfly
