#include "butterfly/api/replica.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "butterfly/base/units.h"

namespace butterfly {
namespace {

/// Least over greatest time that the nodes of these shares need for a step; 0 where one is unknown.
double factor_of(std::span<const NodeShare> shares, double NodeShare::*seconds) {
  std::map<std::string, double> node_s;
  double least = std::numeric_limits<double>::infinity();
  double greatest = 0.0;
  for (const NodeShare& share : shares) {
    if (!(share.*seconds > 0.0)) return 0.0;
    node_s[share.node_id] += share.*seconds;
  }
  for (const auto& [node, needed_s] : node_s) {
    least = std::min(least, needed_s);
    greatest = std::max(greatest, needed_s);
  }
  return greatest > 0.0 ? least / greatest : 0.0;
}

}  // namespace

Result<GeneratedText> Replica::generate(const Tokenizer& tokenizer, const Request& request, int context,
                                        const TextSink& sink, std::stop_token stop) {
  const std::lock_guard lock(mutex);
  const std::uint64_t wire_before = deployment->wire_bytes();
  BF_ASSIGN_OR_RETURN(std::vector<Generation> generations,
                      butterfly::generate(deployment->pipeline(), tokenizer, std::span(&request, 1),
                                          {.context = context}, sink, std::move(stop)));
  Generation& generation = generations[0];
  GeneratedText result{.text = std::move(generation.text),
                       .tokens = {},
                       .finish = to_string(generation.reason),
                       .first_token_s = generation.first_token_s,
                       .total_s = generation.total_s,
                       .wire_bytes = deployment->wire_bytes() - wire_before};
  for (TokenId token : generation.tokens) result.tokens.push_back(token.value);
  return result;
}

std::string Replica::describe() const {
  const std::lock_guard lock(mutex);
  std::string text;
  for (const NodeReport& node : deployment->nodes()) {
    text += fmt::format("{}{}: layers {}-{}{}{}, {}\n", node.name, suffix, node.assignment.first_layer,
                        node.assignment.last_layer - 1, node.assignment.embedding ? " + embedding" : "",
                        node.assignment.head ? " + head" : "", format_bytes(node.memory_bytes));
  }
  return text;
}

BalanceReport Replica::balance() const {
  const std::lock_guard lock(mutex);
  BalanceReport report;
  const std::vector<StageWork> work = deployment->work();
  const std::vector<NodeReport> nodes = deployment->nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const StageAssignment& assignment = nodes[i].assignment;
    NodeShare share{.node_id = nodes[i].name + suffix,
                    .first_layer = assignment.first_layer,
                    .last_layer = assignment.last_layer,
                    .first_slice = assignment.slices.first,
                    .last_slice = assignment.slices.last,
                    .memory_bytes = nodes[i].memory_bytes};
    if (i < work.size() && work[i].steps > 0) {
      share.steps = work[i].steps;
      share.step_s = static_cast<double>(work[i].busy_ns) * 1e-9 / static_cast<double>(work[i].steps);
    }
    const double predicted_s = deployment->plan().shares[i].prediction.decode_s;
    if (std::isfinite(predicted_s)) share.predicted_s = predicted_s;
    report.shares.push_back(std::move(share));
  }
  report.load_balance_factor = factor_of(report.shares, &NodeShare::step_s);
  if (report.load_balance_factor == 0.0) {
    report.load_balance_factor = factor_of(report.shares, &NodeShare::predicted_s);
  }
  return report;
}

}  // namespace butterfly
