// The subcommands of `butterfly bench`, one file each.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "commands.h"

namespace butterfly::app {

void add_bench_model(CLI::App& bench, Action& action);
void add_bench_wire(CLI::App& bench, Action& action);
void add_bench_memory(CLI::App& bench, Action& action);
void add_bench_collectives(CLI::App& bench, Action& action);
void add_bench_sgd(CLI::App& bench, Action& action);
void add_bench_serialisation(CLI::App& bench, Action& action);

/// The end of every subcommand here: its --json, and `run` as what is done when it is chosen.
template <typename Command>
void finish_bench(CLI::App& sub, Action& action, const std::shared_ptr<Command>& command,
                  Status (*run)(const Command&)) {
  sub.add_flag("--json", command->json, "JSON on stdout");
  sub.callback([command, run, &action] {
    action = [command, run] {
      const Status done = run(*command);
      return done ? kExitOk : fail(done.error());
    };
  });
}

/// On stdout, indented.
void print_json(const nlohmann::ordered_json& json);

/// The middle of at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace butterfly::app
