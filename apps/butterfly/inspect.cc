// butterfly inspect: a model file, or this machine.
#include "butterfly/machine/isa.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/topology.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "butterfly/base/units.h"
#include "commands.h"

namespace butterfly::app {

void add_inspect(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("inspect", "Show what a model file holds, or what this machine can do");
  auto options = std::make_shared<InspectOptions>();
  auto* model = sub->add_option("model", options->model, "GGUF file, or Hugging Face directory");
  sub->add_flag("--machine", options->machine, "This machine: instruction sets, memory, measured peaks")
      ->excludes(model);
  sub->add_flag("--tensors", options->tensors, "Every tensor with type and shape");
  sub->add_flag("--json", options->json, "JSON on stdout");
  sub->callback([options, &action] {
    if (!options->machine && options->model.empty()) throw CLI::RequiredError("a MODEL or --machine");
    action = [options] { return options->machine ? inspect_machine(*options) : inspect_model(*options); };
  });
}

}  // namespace butterfly::app
