// Ranks that hold everything beside ranks that divide gradients, moments and weights, run and timed: DDP or FSDP.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "study/scale_point.h"

namespace butterfly::app {

/// The strategies of `train --parallel` that are run beside each other, the simplest first.
struct StrategyPoint {
  std::string_view strategy;  // "ddp", "zero2", "zero3"
  std::string_view scheme;    // "DDP", "FSDP SHARD_GRAD_OP", "FSDP FULL_SHARD"
  ScalePoint point{};
};
std::vector<StrategyPoint> strategy_points(int ranks, int cpus);

/// Which was faster, and why. One that divides has to be shown to be faster: DDP is the simpler one.
struct StrategyVerdict {
  std::vector<StrategyPoint> points{};  // compared with the first
  std::size_t fastest = 0;              // by its median
  std::size_t chosen = 0;
  std::string reason{};
};
StrategyVerdict judge_strategies(std::vector<StrategyPoint> points);

std::string strategies_text(const StrategyVerdict& verdict);
nlohmann::ordered_json strategies_json(const StrategyVerdict& verdict);

}  // namespace butterfly::app
