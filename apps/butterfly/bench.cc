// butterfly bench: what this machine does, and how fast.
#include "bench.h"

namespace butterfly::app {

void add_bench(CLI::App& app, Action& action) {
  auto* bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench->require_subcommand(1);
  add_bench_model(*bench, action);
  add_bench_wire(*bench, action);
  add_bench_memory(*bench, action);
  add_bench_collectives(*bench, action);
  add_bench_sgd(*bench, action);
  add_bench_serialisation(*bench, action);
}

}  // namespace butterfly::app
