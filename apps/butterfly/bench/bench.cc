// butterfly bench: what this machine does, and how fast.
#include "bench/bench.h"

#include <cstdio>

#include "butterfly/base/json.h"

namespace butterfly::app {

void add_bench(Command app, Action& action) {
  auto bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench.require_subcommand();
  add_bench_kernels(bench, action);
  add_bench_plan(bench, action);
  add_bench_model(bench, action);
  add_bench_train(bench, action);
  add_bench_wire(bench, action);
  add_bench_memory(bench, action);
  add_bench_collectives(bench, action);
  add_bench_sgd(bench, action);
  add_bench_serve(bench, action);
  add_bench_all(bench, action);
}

void print_json(const nlohmann::ordered_json& json) {
  std::printf("%s\n", dump_json(json, {.indent = 2}).c_str());
}

}  // namespace butterfly::app
