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
  auto quality =
      sub.add_option("--quality", options->quality, "What this file's weights lose: compared with those of --against");
  quality.excludes(model);
  sub.add_option("--against", options->against, "The same model, stored finer").needs(quality);
  sub.add_option("--text", options->text, "UTF-8 text: KL divergence of what both predict in it").needs(quality);
  sub.add_option("--window", options->window, "Tokens of the text that are predicted from one beginning")
      .in_range(2, 1 << 20)
      .needs(quality);
  sub.add_flag("--tensors", options->tensors, "Every tensor with type and shape");
  sub.add_flag("--json", options->json, "JSON on stdout");
  const auto missing = [options] {
    if (!options->quality.empty()) return std::string(options->against.empty() ? "--against FILE" : "");
    return std::string(options->machine || !options->model.empty() ? "" : "a MODEL, --machine or --quality FILE");
  };
  run_later(
      sub, action,
      [options]() -> Result<int> {
        if (!options->quality.empty()) return inspect_quality(*options);
        return options->machine ? inspect_machine(*options) : inspect_model(*options);
      },
      missing);
}

}  // namespace butterfly::app
