// butterfly inspect: a model file, or this machine.
#include "butterfly/machine/isa.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/topology.h"

#include <cstdio>
#include <memory>
#include <string>

#include "butterfly/base/units.h"
#include "commands.h"

namespace butterfly::app {

void add_inspect(Command app, Action& action) {
  auto sub = app.add_subcommand("inspect", "Show what a model file holds, or what this machine can do");
  auto options = std::make_shared<InspectOptions>();
  auto model = sub.add_option("model", options->model, "GGUF file, or Hugging Face directory");
  sub.add_flag("--machine", options->machine, "This machine: instruction sets, memory, measured peaks").excludes(model);
  sub.add_flag("--tensors", options->tensors, "Every tensor with type and shape");
  sub.add_flag("--json", options->json, "JSON on stdout");
  const auto missing = [options] {
    return std::string(options->machine || !options->model.empty() ? "" : "a MODEL or --machine");
  };
  run_later(
      sub, action,
      [options]() -> Result<int> { return options->machine ? inspect_machine(*options) : inspect_model(*options); },
      missing);
}

}  // namespace butterfly::app
