// The subcommands of `butterfly bench`, one file each.
#pragma once

#include <algorithm>
#include <vector>

#include "commands.h"

namespace butterfly::app {

void add_bench_model(CLI::App& bench, Action& action);
void add_bench_wire(CLI::App& bench, Action& action);
void add_bench_memory(CLI::App& bench, Action& action);
void add_bench_collectives(CLI::App& bench, Action& action);
void add_bench_sgd(CLI::App& bench, Action& action);
void add_bench_serialisation(CLI::App& bench, Action& action);

/// Of at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace butterfly::app
