// butterfly study: where the time of a command goes, what limits it, what to do, and whether it helped.
#include "study/study.h"

namespace butterfly::app {

void add_study(Command app, Action& action) {
  auto study = app.add_subcommand("study", "Where the time of a command goes, what limits it, and what to do about it");
  study.require_subcommand();
  study.footer(
      "Examples:\n"
      "  butterfly study run -- generate -m models/demo.gguf -p \"ROMEO:\" -n 200\n"
      "  butterfly study run -o before --repeats 3 -- train --model tinytransformer-tiny --data synthetic:markov "
      "--steps 100\n"
      "  butterfly study report before\n"
      "  butterfly study compare before after\n"
      "  butterfly study watch 127.0.0.1:8080\n"
      "  butterfly study try -- train --model tinytransformer-tiny --data synthetic:markov --steps 40 --fusion none\n"
      "  butterfly study scale --sizes 1,2 -- train --model tinytransformer-tiny --data synthetic:markov --steps 12\n"
      "What each number means: docs/study.md.");
  add_study_run(study, action);
  add_study_report(study, action);
  add_study_compare(study, action);
  add_study_watch(study, action);
  add_study_try(study, action);
  add_study_scale(study, action);
}

}  // namespace butterfly::app
