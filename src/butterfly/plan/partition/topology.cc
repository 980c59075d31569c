#include "butterfly/plan/partition/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "butterfly/plan/partition/balanced.h"

namespace butterfly {
namespace {

constexpr int kMovesMin = 2'000;
constexpr int kMovesMax = 40'000;
constexpr int kStageVisitsMax = 3'000'000;  // moves times stages: a hundred stages within a second
constexpr double kHot = 0.1;                // temperatures, relative to the first score
constexpr double kCold = 1e-4;

/// The standard's distributions differ between libraries; plans must not.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

struct Stage {
  int node = 0;
  int count = 0;
};

struct State {
  std::vector<Stage> stages;
  std::vector<int> standby;
};

State state_of(const PlanningProblem& problem, std::span<const Share> shares) {
  State state;
  std::vector<char> works(problem.cluster->nodes.size(), 0);
  for (const Share& share : shares) {
    state.stages.push_back({.node = share.node, .count = share.work.layers()});
    works[static_cast<std::size_t>(share.node)] = 1;
  }
  for (int node = 0; node < problem.nodes(); ++node) {
    if (works[static_cast<std::size_t>(node)] == 0) state.standby.push_back(node);
  }
  return state;
}

std::vector<Share> shares_of(const PlanningProblem& problem, const State& state) {
  std::vector<Share> shares;
  int first = 0;
  for (const Stage& stage : state.stages) {
    shares.push_back({.node = stage.node, .work = problem.whole(first, first + stage.count)});
    first += stage.count;
  }
  return shares;
}

/// One layer from one stage to another; a stage without any stands by.
void move_layer(State& state, std::size_t from, std::size_t to) {
  if (from == to) return;
  ++state.stages[to].count;
  if (--state.stages[from].count > 0) return;
  state.standby.push_back(state.stages[from].node);
  state.stages.erase(state.stages.begin() + static_cast<std::ptrdiff_t>(from));
}

/// A node that stands by takes half of a stage's layers, behind it.
void bring_in(State& state, Dice& dice) {
  const std::size_t at = dice.below(state.stages.size());
  if (state.stages[at].count < 2) return;
  const std::size_t who = dice.below(state.standby.size());
  const Stage joining{.node = state.standby[who], .count = state.stages[at].count / 2};
  state.stages[at].count -= joining.count;
  state.standby.erase(state.standby.begin() + static_cast<std::ptrdiff_t>(who));
  state.stages.insert(state.stages.begin() + static_cast<std::ptrdiff_t>(at + 1), joining);
}

/// A stage's layers go to its neighbour.
void send_home(State& state, Dice& dice) {
  const std::size_t at = dice.below(state.stages.size());
  const std::size_t heir = at == 0 ? 1 : at - 1;
  state.stages[heir].count += state.stages[at].count;
  state.standby.push_back(state.stages[at].node);
  state.stages.erase(state.stages.begin() + static_cast<std::ptrdiff_t>(at));
}

void change(State& state, Dice& dice) {
  const std::size_t stages = state.stages.size();
  const std::size_t a = dice.below(stages);
  const std::size_t b = dice.below(stages);
  switch (dice.below(7)) {
    case 0:  // nodes swap places, each with its layers
      std::swap(state.stages[a], state.stages[b]);
      return;
    case 1:  // nodes swap places, layers stay
      std::swap(state.stages[a].node, state.stages[b].node);
      return;
    case 2:  // a border moves
      move_layer(state, a, a + 1 < stages ? a + 1 : 0);
      return;
    case 3:
      move_layer(state, a, b);
      return;
    case 4:  // a stretch of the order is reversed
      std::reverse(state.stages.begin() + static_cast<std::ptrdiff_t>(std::min(a, b)),
                   state.stages.begin() + static_cast<std::ptrdiff_t>(std::max(a, b) + 1));
      return;
    case 5:
      if (!state.standby.empty()) {
        std::swap(state.stages[a].node, state.standby[dice.below(state.standby.size())]);
      }
      return;
    default:
      if (stages > 1 && (state.standby.empty() || dice.below(2) == 0)) return send_home(state, dice);
      if (!state.standby.empty()) return bring_in(state, dice);
  }
}

}  // namespace

Result<Split> split_topology(const PlanningProblem& problem) {
  BF_ASSIGN_OR_RETURN(Split start, split_balanced(problem));
  start.note.clear();
  if (problem.missing_bytes(start.shares) > 0) return start;
  Dice dice(problem.seed);
  State state = state_of(problem, start.shares);
  double score = problem.score(start.shares);
  if (!std::isfinite(score)) score = 1e30;  // a cut link: anything that avoids it is better
  std::vector<Share> best = std::move(start.shares);
  double least = score;
  const double unit = std::min(score, 1e6);
  const int moves = std::clamp(kStageVisitsMax / static_cast<int>(state.stages.size()), kMovesMin, kMovesMax);
  for (int move = 0; move < moves; ++move) {
    State next = state;
    change(next, dice);
    std::vector<Share> shares = shares_of(problem, next);
    const double reached = problem.score(shares);
    const double temperature = unit * kHot * std::pow(kCold / kHot, static_cast<double>(move) / moves);
    const double chance = std::exp(std::min(0.0, (score - reached) / temperature));
    if (!(dice.unit() < chance) || problem.missing_bytes(shares) > 0) continue;
    state = std::move(next);
    score = reached;
    if (score >= least) continue;
    least = score;
    best = std::move(shares);
  }
  return Split{.shares = std::move(best), .note = fmt::format("annealed with seed {}, {} moves", problem.seed, moves)};
}

}  // namespace butterfly
