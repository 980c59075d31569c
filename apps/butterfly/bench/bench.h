// The subcommands of `butterfly bench`, one file each.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "butterfly/base/statistics.h"
#include "commands.h"
#include "options/options.h"

namespace butterfly::app {

void add_bench_kernels(Command bench, Action& action);
void add_bench_plan(Command bench, Action& action);
void add_bench_model(Command bench, Action& action);
void add_bench_train(Command bench, Action& action);
void add_bench_wire(Command bench, Action& action);
void add_bench_memory(Command bench, Action& action);
void add_bench_collectives(Command bench, Action& action);
void add_bench_sgd(Command bench, Action& action);
void add_bench_serve(Command bench, Action& action);
void add_bench_all(Command bench, Action& action);

/// The end of every subcommand here: its --json, and `run` as what is done when it is chosen.
template <typename Options>
void finish_bench(Command sub, Action& action, const std::shared_ptr<Options>& options, Status (*run)(const Options&)) {
  sub.add_flag("--json", options->json, "JSON on stdout");
  run_later(sub, action, [options, run]() -> Result<int> {
    BF_TRY(run(*options));
    return kExitOk;
  });
}

/// On stdout, indented.
void print_json(const nlohmann::ordered_json& json);

}  // namespace butterfly::app
